#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# include/unitscale/compiled.hpp lists every op, module and optimiser: unitscale::compiled then leaves none to users'
# sources. It includes existing headers of ours, each once. So does train/compiled.hpp, with classes of its layer.
# Usage: compiled.sh SOURCE_DIRECTORY
set -euo pipefail
# shellcheck source=tests/structure/layers.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/layers.sh"
cd -- "$1"

compiled=include/unitscale/compiled.hpp
if [[ ! -f $compiled ]]; then
  fault "$compiled" "is not there"
  finish "compiled header"
fi
listed=$(sed -n '/^#define UNITSCALE_COMPILED_/,/;$/p' "$compiled")

# Functions that return variables. Left out: functions that record for other ops, and functions that take functions of
# a user's type.
returns='Variable<T>|std::(array|pair)<Variable<T>, [a-z0-9]+>'
for header in include/unitscale/ops/*.hpp; do
  while IFS= read -r op; do
    case $op in record_* | custom_scale) continue ;; esac
    grep -qE "[> ]$op<T[,>]" <<< "$listed" || fault "$compiled" "does not list ops::$op of $header"
  done < <(sed -nE "s/^\[\[nodiscard\]\] ($returns) ([a-z0-9_]+)\(.*/\3/p" "$header" | sort -u)
done
# Classes of an element type.
for header in include/unitscale/nn/*.hpp include/unitscale/optim/{adam,lamb,sgd}.hpp; do
  layer=$(basename "$(dirname "$header")")
  while IFS= read -r class; do
    grep -q "class $layer::$class<T>;" <<< "$listed" || fault "$compiled" "does not list $layer::$class of $header"
  done < <(grep -A 1 -x 'template <class T>' "$header" | sed -nE 's/^class ([A-Za-z0-9]+).*/\1/p')
done
# The layer `train` has a header of its own: the classes of the headers that it includes.
training=include/unitscale/train/compiled.hpp
if [[ ! -f $training ]]; then
  fault "$training" "is not there"
  finish "compiled header"
fi
listed=$(sed -n '/^#define UNITSCALE_COMPILED_/,/;$/p' "$training")
while IFS= read -r path; do
  while IFS= read -r class; do
    grep -qE "class $class<T[,>]" <<< "$listed" || fault "$training" "does not list $class of include/$path"
  done < <(grep -A 1 -E '^template <class T(, class Optimiser.*)?>$' "include/$path" |
    sed -nE 's/^class ([A-Za-z0-9]+).*/\1/p')
done < <(sed -nE 's/^#include <(unitscale\/train\/[^>]+)>/\1/p' "$training")

while IFS= read -r path; do
  [[ -f include/$path ]] || fault "$compiled" "includes <$path>, which is not there"
done < <(sed -nE 's/^#include <(unitscale\/[^>]+)>/\1/p' "$compiled")
for header in "$compiled" "$training"; do
  twice=$(grep '^#include' "$header" | sort | uniq -d)
  [[ -z $twice ]] || fault "$header" "$twice twice"
done

finish "compiled header"
