#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=tests/support/install.sh
source "$root/tests/support/install.sh"
# shellcheck source=tests/support/arm_root.sh
source "$root/tests/support/arm_root.sh"

usage() {
  cat << END
usage: bash tests/run.sh [--matrix]

Installs what is missing (Debian; elsewhere names it), builds the tests and the small examples in build/tests \
and runs them.

  --matrix  GCC and Clang 16, each Release and with address and undefined-behaviour sanitizers; GCC without OpenMP and
            -march=native, each source alone; the Release tests again, held to the instruction sets \`baseline\` and
            \`avx2\`; the kernels' bits under all compiler options; Clang 16 with its own standard library; 64-bit
            ARM, emulated by qemu, which takes hours
  --help    this text
END
}

matrix=false
for argument in "$@"; do
  case $argument in
    --matrix) matrix=true ;;
    --help | -h)
      usage
      exit 0
      ;;
    *)
      printf "tests/run.sh: unknown argument '%s'; known: --matrix, --help\n" "$argument" >&2
      exit 2
      ;;
  esac
done

packages=(g++ cmake ninja-build libeigen3-dev libxtensor-dev catch2 nlohmann-json3-dev libzip-dev libicu-dev
  libpcre2-dev libsentencepiece-dev libopenmpi-dev openmpi-bin iproute2)
if $matrix; then
  packages+=(libcli11-dev clang-16 libomp-16-dev libclang-rt-16-dev libc++-16-dev libc++abi-16-dev
    g++-aarch64-linux-gnu qemu-user)
fi
need "${packages[@]}"
set_parallel_level
cd -- "$root"
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}  # tests run beside each other: waiting threads must not spin

build() {  # build <directory> <preset> <cmake argument>...
  cmake --preset "$2" -B "$1" -DUNITSCALE_TESTS=ON -DUNITSCALE_BENCH=OFF "${@:3}" && cmake --build "$1"
}
run_tests() {  # run_tests <directory> <ctest argument>...
  ctest --test-dir "$1" --output-on-failure --no-label-summary --no-tests=error \
    -j "$CMAKE_BUILD_PARALLEL_LEVEL" "${@:2}"
}

# Warnings are errors where nobody is kept from working by a newer compiler's opinion, and in optimised builds
# only: sanitizers make compilers warn of things that are not there.
strict=-DUNITSCALE_WARNINGS_AS_ERRORS=OFF
if $matrix || [[ -n ${CI:-} ]]; then strict=-DUNITSCALE_WARNINGS_AS_ERRORS=ON; fi

if ! $matrix; then
  # The small examples are built with the tests; UNITSCALE_EXAMPLES adds those with options, which need CLI11.
  build build/tests release -DUNITSCALE_EXAMPLES=OFF "$strict"
  run_tests build/tests
  exit
fi

summary=() failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
step() {  # step <title> <command>...
  printf '\n==== %s\n' "$1"
  local status=0 line
  "${@:2}" 2>&1 | tee "$log" || status=1
  line=$(grep -E '% tests passed' "$log" || true)
  if ((status != 0)); then failed=1 line="FAILED ${line}"; fi
  summary+=("$(printf '%-28s %s' "$1" "${line:-built}")")
}
# shellcheck disable=SC2317  # called through step
build_and_test() { build "$@" && run_tests "$1"; }
# shellcheck disable=SC2317
run_with_isa() { UNITSCALE_ISA=$1 run_tests build/matrix/gcc -L '^(unit|examples)$'; }

# shellcheck disable=SC2317
build_and_test_arm() {
  arm_root build/matrix/aarch64-root &&
    build_and_test build/matrix/aarch64 release --toolchain "$root/cmake/aarch64-linux-gnu.cmake" \
      -DUNITSCALE_AARCH64_ROOT="$root/build/matrix/aarch64-root" -DUNITSCALE_EXAMPLES=ON "$strict"
}

# A build directory keeps its compiler, so none is shared with build/tests, whose compiler is the user's choice.
step "gcc release" build_and_test build/matrix/gcc release -DCMAKE_CXX_COMPILER=g++ -DUNITSCALE_EXAMPLES=ON \
  -DUNITSCALE_TEST_ALL_FLAGS=ON "$strict"
step "gcc release, baseline" run_with_isa baseline
step "gcc release, avx2" run_with_isa avx2
step "gcc, no OpenMP, no native" build_and_test build/matrix/gcc-plain release -DCMAKE_CXX_COMPILER=g++ \
  -DUNITSCALE_OPENMP=OFF -DUNITSCALE_NATIVE=OFF -DUNITSCALE_UNIT_LINES=0 -DUNITSCALE_EXAMPLES=ON "$strict"
step "gcc sanitizers" build_and_test build/matrix/gcc-sanitize sanitize -DCMAKE_CXX_COMPILER=g++ \
  -DUNITSCALE_EXAMPLES=OFF
step "clang release" build_and_test build/matrix/clang clang -DUNITSCALE_EXAMPLES=ON \
  -DUNITSCALE_TEST_ALL_FLAGS=ON "$strict"
step "clang sanitizers" build_and_test build/matrix/clang-sanitize clang-sanitize -DUNITSCALE_EXAMPLES=OFF
# SentencePiece is built for the other standard library, and strings pass between it and its caller.
step "clang libc++" build_and_test build/matrix/clang-libcxx clang -DCMAKE_CXX_FLAGS=-stdlib=libc++ \
  -DUNITSCALE_SENTENCEPIECE_LIBRARY=OFF -DUNITSCALE_EXAMPLES=OFF "$strict"
step "aarch64 release" build_and_test_arm

printf '\n'
printf '%s\n' "${summary[@]}"
exit "$failed"
