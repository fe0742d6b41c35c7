# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# Makes sure that the packages that scripts need are there: installs them on Debian and its relatives, else names them.
# Sourced by tests/run.sh and examples/run.sh.

# Whether the contents of a Debian package are there, installed in any way.
is_there() {  # is_there <package>
  case $1 in
    g++) command -v "${CXX:-c++}" || command -v g++ ;;
    cmake) command -v cmake ;;
    ninja-build) command -v ninja ;;
    clang-16) command -v clang++-16 ;;
    libomp-16-dev) ls /usr/lib/llvm-16/lib/libomp.so ;;
    libclang-rt-16-dev) ls /usr/lib/llvm-16/lib/clang/16/lib/linux/libclang_rt.asan-*.a ;;
    libc++-16-dev) ls /usr/lib/llvm-16/include/c++/v1/version ;;
    libc++abi-16-dev) ls /usr/lib/llvm-16/lib/libc++abi.so ;;
    g++-aarch64-linux-gnu) command -v aarch64-linux-gnu-g++ ;;
    qemu-user) command -v qemu-aarch64 ;;
    libeigen3-dev) has_header eigen3/Eigen/Core Eigen/Core ;;
    libxtensor-dev) has_header xtensor/xarray.hpp xtensor/containers/xarray.hpp ;;
    catch2) has_header catch2/catch.hpp catch2/catch_all.hpp ;;
    libcli11-dev) has_header CLI/CLI.hpp ;;
    nlohmann-json3-dev) has_header nlohmann/json.hpp ;;
    libzip-dev) has_header zip.h ;;
    libicu-dev) has_header unicode/unistr.h ;;
    libpcre2-dev) has_header pcre2.h ;;
    libsentencepiece-dev) has_header sentencepiece_processor.h ;;
    libopenmpi-dev) has_header mpi.h openmpi/mpi.h || command -v mpicxx ;;
    openmpi-bin) command -v mpirun ;;
    *) return 1 ;;
  esac > /dev/null 2>&1
}
has_header() {  # has_header <path>...: one of the paths is in an include directory
  local prefix path prefixes
  IFS=':;' read -r -a prefixes <<< "${CMAKE_PREFIX_PATH:-}:${CONDA_PREFIX:-}"
  for prefix in /usr /usr/local /opt/homebrew /opt/local "${prefixes[@]}"; do
    for path in "$@"; do
      [[ -n $prefix && -f $prefix/include/$path ]] && return 0
    done
  done
  return 1
}

# need <package>...: returns if all are there; otherwise installs them, or names the missing ones and exits with 2.
need() {
  local package missing=() as_root=()
  for package in "$@"; do
    is_there "$package" || missing+=("$package")
  done
  ((${#missing[@]} > 0)) || return 0
  give_up() {
    printf '%s: %s. Needed, by the names of the Debian packages: %s\n' "$0" "$1" "${missing[*]}" >&2
    exit 2
  }
  command -v apt-get > /dev/null || give_up "cannot install without apt-get"
  if ((EUID != 0)); then
    command -v sudo > /dev/null || give_up "cannot install without root or sudo"
    as_root=(sudo)
    [[ -t 0 ]] || as_root=(sudo -n)
  fi
  printf '%s: installing %s\n' "$0" "${missing[*]}"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120)
  "${apt[@]}" update < /dev/null || give_up "apt-get update failed"
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" < /dev/null || give_up "apt-get install failed"
}

# The number of jobs for building and testing: CMAKE_BUILD_PARALLEL_LEVEL, or one per processor, but no more than the
# memory holds. A compiler takes up to 2 GB.
set_parallel_level() {
  local processors jobs
  processors=$(nproc 2> /dev/null || getconf _NPROCESSORS_ONLN)
  jobs=$(awk '/^MemTotal:/ { print int($2 / 2000000) }' /proc/meminfo 2> /dev/null || true)
  jobs=${jobs:-$processors}  # other systems than Linux do not tell
  if ((jobs < 1)); then jobs=1; fi
  if ((jobs > processors)); then jobs=$processors; fi
  export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$jobs}
}
