#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what is missing (Debian; elsewhere names it), builds the example train_transformer in build/examples and runs
# it in the current directory, with the arguments of this script.   Usage: bash examples/run.sh [ARGUMENT...]
# UNITSCALE_EXAMPLES_BUILD names a build directory that there is already, such as build/tests, to share what is compiled
# in it.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=tests/support/install.sh
source "$root/tests/support/install.sh"

need g++ cmake ninja-build libeigen3-dev libxtensor-dev libcli11-dev nlohmann-json3-dev libicu-dev libpcre2-dev >&2
set_parallel_level
build=${UNITSCALE_EXAMPLES_BUILD:-$root/build/examples}
# No program with options computes in double. The templates of double took 12 to 19 % of the build.
options=(-DUNITSCALE_TESTS=OFF -DUNITSCALE_BENCH=OFF "-DUNITSCALE_COMPILED_TYPES=float;Half;BFloat16")
if [[ -n ${UNITSCALE_EXAMPLES_BUILD:-} ]]; then options=(-DUNITSCALE_EXAMPLES=ON); fi
# What the build has to say goes to stderr: stdout is the example's.
(
  cd -- "$root"
  cmake --preset release -B "$build" "${options[@]}"
  cmake --build "$build" --target train_transformer
) >&2
exec "$build/train_transformer" "$@"
