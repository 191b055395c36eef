#!/bin/sh
# Install what the Vulkan tests use: the loader, a software driver (lavapipe), the validation layers
# and spirv-val. Never fails the build: without them the tests say what they miss.
set -u

packages="libvulkan1 mesa-vulkan-drivers vulkan-validationlayers spirv-tools"

has_file() {
    for pattern in "$@"; do
        for file in $pattern; do
            [ -e "$file" ] && return 0
        done
    done
    return 1
}

missing() {
    has_file "/usr/lib/*/libvulkan.so.1" "/usr/lib*/libvulkan.so.1" "/usr/local/lib/libvulkan.so.1" || echo "Vulkan loader"
    has_file "/usr/share/vulkan/icd.d/lvp_icd*.json" "/etc/vulkan/icd.d/lvp_icd*.json" \
        "/usr/local/share/vulkan/icd.d/lvp_icd*.json" || echo "lavapipe"
    has_file "/usr/share/vulkan/explicit_layer.d/*khronos_validation*.json" \
        "/etc/vulkan/explicit_layer.d/*khronos_validation*.json" \
        "/usr/local/share/vulkan/explicit_layer.d/*khronos_validation*.json" || echo "validation layers"
    command -v spirv-val >/dev/null 2>&1 || echo "spirv-val"
}

lacking=$(missing | paste -sd, -)
[ -z "$lacking" ] && exit 0

as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if sudo -n true >/dev/null 2>&1; then as_root="sudo -n"; else as_root="none"; fi
fi
if [ "$as_root" != none ] && command -v apt-get >/dev/null 2>&1; then
    echo "vulkan: installing $packages (missing: $lacking)" >&2
    # shellcheck disable=SC2086  # both are lists of words
    { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $packages; } >&2
    lacking=$(missing | paste -sd, -)
    [ -z "$lacking" ] && exit 0
fi
cat >&2 <<EOF
vulkan: missing: $lacking
vulkan: tests that need them are skipped (and fail where CI=true). To install them:
vulkan:   Debian, Ubuntu:  apt-get install $packages
vulkan:   Fedora:          dnf install vulkan-loader mesa-vulkan-drivers vulkan-validation-layers spirv-tools
vulkan:   Arch:            pacman -S vulkan-icd-loader vulkan-swrast vulkan-validation-layers spirv-tools
EOF
exit 0
