#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests that compare.sh accepts output within the tolerances and shows other output.
# Usage: self_test.sh
set -euo pipefail
compare=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)/compare.sh
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
cd -- "$folder"
failed=0

printf '%s\n' 'loss 0.31±0.02, of 3' '' 'accuracy  99±1 %' > expected.txt
program() {  # program <exit code> <line>...: a program that prints these lines
  printf '%s\n' "${@:2}" > lines.txt
  printf '%s\n' '#!/usr/bin/env bash' 'cat lines.txt' "exit $1" > program
  chmod +x program
}
accepted() {
  program 0 "$@"
  bash "$compare" expected.txt ./program > output.txt || { echo "refused: $*" && cat output.txt && failed=1; }
}
refused() {  # refused <line of the output> <exit code of the program> <line>...
  program "${@:2}"
  if bash "$compare" expected.txt ./program > output.txt; then
    echo "accepted: ${*:2}"
    failed=1
  fi
  grep -qxF -e "$1" output.txt || { echo "no line '$1' for ${*:2}:" && cat output.txt && failed=1; }
}

accepted 'loss 0.31, of 3' '' 'accuracy  99 %'
accepted 'loss 0.29, of 3' '' 'accuracy  98 %'
accepted 'loss 0.33, of 3' '' 'accuracy 100 %'
refused '+loss 0.34, of 3' 0 'loss 0.34, of 3' '' 'accuracy  99 %'
refused '+loss -0.31, of 3' 0 'loss -0.31, of 3' '' 'accuracy  99 %'
refused '+loss 0.31, of 4' 0 'loss 0.31, of 4' '' 'accuracy  99 %'
refused '+loss 0.31,  of 3' 0 'loss 0.31,  of 3' '' 'accuracy  99 %'
refused '+loss 0.31; of 3' 0 'loss 0.31; of 3' '' 'accuracy  99 %'
refused '+loss nan, of 3' 0 'loss nan, of 3' '' 'accuracy  99 %'
refused '-accuracy  99±1 %' 0 'loss 0.31, of 3' ''
refused '+more' 0 'loss 0.31, of 3' '' 'accuracy  99 %' 'more'
refused './program ends with exit code 3' 3 'loss 0.31, of 3' '' 'accuracy  99 %'
rm expected.txt
refused 'expected.txt: is not there; it should hold what ./program prints' 0 'loss 0.31, of 3'

((failed == 0)) && echo 'compare.sh: good'
exit "$failed"
