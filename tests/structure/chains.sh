#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# chains.awk sorts a small tree as expected: chains in the order of includes, stages, a circle, a header left out.
# Usage: chains.sh WORK_DIRECTORY
set -euo pipefail
chains=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)/chains.awk
rm -rf "$1"
mkdir -p "$1/unitscale"
cd -- "$1"
header() {  # header <name> <included name>...
  local included
  for included in "${@:2}"; do printf '#include <unitscale/%s.hpp>\n' "$included"; done > "unitscale/$1.hpp"
  printf '// the end\n' >> "unitscale/$1.hpp"
}
header base
header other           # includes nothing: a chain of its own
header stage base
header left_out stage  # not given below: what it includes is not known
header user left_out
header top user trainer
header trainer stage compiled
header compiled trainer  # a circle
expected='- unitscale/base.hpp unitscale/stage.hpp
- unitscale/other.hpp
- unitscale/user.hpp
- unitscale/compiled.hpp
unitscale/stage.hpp unitscale/trainer.hpp unitscale/top.hpp'
found=$(awk -v root=. -v stages=unitscale/stage.hpp -f "$chains" \
  ./unitscale/{base,other,stage,user,top,trainer,compiled}.hpp)
if [[ $found != "$expected" ]]; then
  printf 'chains.awk: found\n%s\nexpected\n%s\n' "$found" "$expected" >&2
  exit 1
fi
printf 'chains: good\n'
