# SPDX-License-Identifier: MIT
# For tests of programs, to be sourced with the program's path as argument: sets `program`, goes to a folder that is removed at the
# end, and counts failures.
# shellcheck shell=bash
program=$(realpath -- "$1")
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
cd -- "$folder"
failures=0

fail() {
  printf 'FAILED: %s\n' "$1" >&2
  failures=$((failures + 1))
}
