#!/bin/sh
# Install what the tests of other CPUs use: qemu-user for AArch64 and RISC-V. Never fails the build:
# without it the tests say what they miss.
set -u

missing() {
    for program in qemu-aarch64 qemu-riscv64; do
        command -v "$program" >/dev/null 2>&1 || echo "$program"
    done
}

lacking=$(missing | paste -sd, -)
[ -z "$lacking" ] && exit 0

as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if sudo -n true >/dev/null 2>&1; then as_root="sudo -n"; else as_root="none"; fi
fi
if [ "$as_root" != none ] && command -v apt-get >/dev/null 2>&1; then
    echo "emulation: installing qemu-user (missing: $lacking)" >&2
    { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends qemu-user; } >&2
    lacking=$(missing | paste -sd, -)
    [ -z "$lacking" ] && exit 0
fi
cat >&2 <<EOF
emulation: missing: $lacking
emulation: tests that need them are skipped (and fail where CI=true). To install them:
emulation:   Debian, Ubuntu:  apt-get install qemu-user
emulation:   Fedora:          dnf install qemu-user
emulation:   Arch:            pacman -S qemu-user
EOF
exit 0
