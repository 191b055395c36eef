#!/bin/sh
# Install lavapipe from the distribution's backports: the machine's own Debian source with its suite
# changed to CODENAME-backports, so that whatever mirror the machine uses is used here too.
set -eu

[ "$(id -u)" -eq 0 ] || { echo "lavapipe-backports: run as root" >&2; exit 1; }
# shellcheck disable=SC1091
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:?no release codename in /etc/os-release}")
suite=$codename-backports
target=/etc/apt/sources.list.d/mansard-backports.list

# The first source that carries the release itself, in either of apt's two formats.
uri=$(sed -n "s/^deb  *\(\[[^]]*\] *\)\{0,1\}\([^ ]*\) $codename .*/\2/p" \
    /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null | head -n 1)
if [ -z "$uri" ]; then
    uri=$(awk -v RS= -v suite="$codename" '
        { uris = ""; found = 0
          count = split($0, lines, "\n")
          for (i = 1; i <= count; i++) {
              if (lines[i] ~ /^URIs:/) { split(lines[i], words, " "); uris = words[2] }
              if (lines[i] ~ /^Suites:/ && (lines[i] " ") ~ (" " suite " ")) found = 1
          }
          if (found && uris != "") { print uris; exit } }' /etc/apt/sources.list.d/*.sources 2>/dev/null)
fi
[ -n "$uri" ] || { echo "lavapipe-backports: no apt source for $codename found" >&2; exit 1; }

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
options=""
[ -f "$keyring" ] && options="[signed-by=$keyring] "
echo "deb $options$uri $suite main" >"$target"
# A snapshot's release files outlive their validity; the signature is still checked.
apt-get -o Acquire::Check-Valid-Until=false update
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -t "$suite" mesa-vulkan-drivers
