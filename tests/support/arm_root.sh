# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# Debian's libraries for 64-bit ARM in a folder: programs are linked with them and run in qemu. Sourced by tests/run.sh.

# arm_root <folder>: unpacks them, unless they are there. The machine's own packages and architectures stay as they are,
# because the download has package lists of its own. In these lists the C library's headers, and nothing else, are
# installed: the cross compiler has them.
arm_root() {
  local folder archive
  folder=$(realpath -m -- "$1")
  [[ ! -e $folder/complete ]] || return 0
  rm -rf -- "$folder"
  mkdir -p -- "$folder"/{usr,apt/lists/partial,apt/archives/partial}
  printf '%s\n' 'Package: libc6-dev' 'Provides: libc-dev' 'Version: 999' 'Architecture: arm64' \
    'Status: install ok installed' > "$folder/apt/status"
  local apt=(apt-get -qq -o "Dir::State=$folder/apt" -o "Dir::State::status=$folder/apt/status"
    -o "Dir::Cache=$folder/apt" -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root)
  "${apt[@]}" update < /dev/null &&
    "${apt[@]}" install -y --download-only --no-install-recommends libc6 libgomp1 libstdc++6 libxtensor-dev \
      libzip-dev libicu-dev libpcre2-dev libsentencepiece-dev libopenmpi3 < /dev/null || return
  # MPI's headers alone: their package also wants compilers.
  (cd -- "$folder/apt/archives" && "${apt[@]}" download libopenmpi-dev < /dev/null) || return
  for archive in "$folder"/apt/archives/*.deb; do dpkg-deb -x "$archive" "$folder" || return; done
  touch "$folder/complete"
}
