#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=tests/support/install.sh
source "$root/tests/support/install.sh"
# shellcheck source=tests/support/arm_root.sh
source "$root/tests/support/arm_root.sh"

steps=(gcc-release gcc-baseline gcc-avx2 gcc-plain gcc-sanitizers clang-release clang-sanitizers clang-libcxx aarch64)

usage() {
  cat << END
usage: bash tests/run.sh [--matrix [STEP...]]

Installs what is missing (Debian; elsewhere names it), builds the tests and the small examples in build/tests \
and runs them.

  --matrix  runs all of these steps, or the steps that are named:
            gcc-release, clang-release        GCC and Clang 16, and the kernels' bits under all compiler options
            gcc-sanitizers, clang-sanitizers  with address and undefined-behaviour sanitizers
            gcc-baseline, gcc-avx2            the tests of gcc-release, held to the instruction set
            gcc-plain                         without OpenMP and -march=native, each source alone
            clang-libcxx                      Clang 16 with its own standard library
            aarch64                           64-bit ARM, emulated by qemu, which takes hours
  --help    this text
END
}

matrix=false chosen=()
for argument in "$@"; do
  if $matrix && [[ " ${steps[*]} " == *" $argument "* ]]; then
    chosen+=("$argument")
    continue
  fi
  case $argument in
    --matrix) matrix=true ;;
    --help | -h)
      usage
      exit 0
      ;;
    *)
      known="--matrix, --help"
      if $matrix; then known="the steps ${steps[*]}"; fi
      printf "tests/run.sh: unknown argument '%s'; known: %s\n" "$argument" "$known" >&2
      exit 2
      ;;
  esac
done
if ((${#chosen[@]} == 0)); then chosen=("${steps[@]}"); fi

packages=(g++ cmake ninja-build libeigen3-dev libxtensor-dev catch2 nlohmann-json3-dev libzip-dev libicu-dev
  libpcre2-dev libsentencepiece-dev libopenmpi-dev openmpi-bin iproute2)
if $matrix; then
  packages+=(libcli11-dev)
  if [[ ${chosen[*]} == *clang* ]]; then
    packages+=(clang-16 libomp-16-dev libclang-rt-16-dev libc++-16-dev libc++abi-16-dev)
  fi
  if [[ ${chosen[*]} == *aarch64* ]]; then packages+=(g++-aarch64-linux-gnu qemu-user); fi
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

build_and_test() { build "$@" && run_tests "$1"; }
# A build directory keeps its compiler, so none is shared with build/tests, whose compiler is the user's choice.
build_gcc() {
  build build/matrix/gcc release -DCMAKE_CXX_COMPILER=g++ -DUNITSCALE_EXAMPLES=ON \
    -DUNITSCALE_TEST_ALL_FLAGS=ON "$strict"
}
run_with_isa() { build_gcc && UNITSCALE_ISA=$1 run_tests build/matrix/gcc -L '^(unit|examples)$'; }
run_step() {
  case $1 in
    gcc-release) build_gcc && run_tests build/matrix/gcc ;;
    gcc-baseline) run_with_isa baseline ;;
    gcc-avx2) run_with_isa avx2 ;;
    gcc-plain)
      build_and_test build/matrix/gcc-plain release -DCMAKE_CXX_COMPILER=g++ -DUNITSCALE_OPENMP=OFF \
        -DUNITSCALE_NATIVE=OFF -DUNITSCALE_UNIT_LINES=0 -DUNITSCALE_EXAMPLES=ON "$strict"
      ;;
    gcc-sanitizers)
      build_and_test build/matrix/gcc-sanitize sanitize -DCMAKE_CXX_COMPILER=g++ -DUNITSCALE_EXAMPLES=OFF
      ;;
    clang-release)
      build_and_test build/matrix/clang clang -DUNITSCALE_EXAMPLES=ON -DUNITSCALE_TEST_ALL_FLAGS=ON "$strict"
      ;;
    clang-sanitizers) build_and_test build/matrix/clang-sanitize clang-sanitize -DUNITSCALE_EXAMPLES=OFF ;;
    clang-libcxx)
      # SentencePiece is built for the other standard library, and strings pass between it and its caller.
      build_and_test build/matrix/clang-libcxx clang -DCMAKE_CXX_FLAGS=-stdlib=libc++ \
        -DUNITSCALE_SENTENCEPIECE_LIBRARY=OFF -DUNITSCALE_EXAMPLES=OFF "$strict"
      ;;
    aarch64)
      arm_root build/matrix/aarch64-root &&
        build_and_test build/matrix/aarch64 release --toolchain "$root/cmake/aarch64-linux-gnu.cmake" \
          -DUNITSCALE_AARCH64_ROOT="$root/build/matrix/aarch64-root" -DUNITSCALE_EXAMPLES=ON "$strict"
      ;;
  esac
}

summary=() failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for name in "${chosen[@]}"; do
  printf '\n==== %s\n' "$name"
  status=0
  run_step "$name" 2>&1 | tee "$log" || status=1
  line=$(grep -E '% tests passed' "$log" || true)
  if ((status != 0)) || [[ -z $line ]]; then failed=1 line="FAILED ${line}"; fi
  summary+=("$(printf '%-17s %s' "$name" "$line")")
done

printf '\n'
printf '%s\n' "${summary[@]}"
exit "$failed"
