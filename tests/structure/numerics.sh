#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# include/unitscale/numerics.hpp includes every header of the layer formats, and otherwise only headers of base and
# scaling/power_of_two.hpp. None of these headers, nor their own includes, needs more than the standard library.
# Usage: numerics.sh SOURCE_DIRECTORY
set -euo pipefail
# shellcheck source=tests/structure/layers.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/layers.sh"
cd -- "$1/include"

entry=unitscale/numerics.hpp
if [[ ! -f $entry ]]; then
  fault "include/$entry" "is not there"
  finish "numerics header"
fi

declare -A included=()
waiting=("$entry")
while ((${#waiting[@]} > 0)); do
  file=${waiting[0]}
  waiting=("${waiting[@]:1}")
  while IFS= read -r path; do
    case $path in
      unitscale/base/* | unitscale/formats/* | unitscale/scaling/power_of_two.hpp)
        if [[ ! -f $path ]]; then
          fault "include/$file" "includes <$path>, which is not there"
        elif [[ -z ${included[$path]+seen} ]]; then
          included[$path]=1 waiting+=("$path")
        elif [[ $file == "$entry" ]]; then
          fault "include/$file" "includes <$path> twice"
        fi
        ;;
      immintrin.h | arm_neon.h) ;;  # the compiler's own
      */* | *.*) fault "include/$file" "includes <$path>: what numerics.hpp reaches needs the standard library only" ;;
      *) [[ $file != "$entry" ]] || fault "include/$file" "includes <$path>: only headers of ours are listed here" ;;
    esac
  done < <(sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]([^>"]+)[>"].*/\1/p' "$file")
  if [[ $file == "$entry" ]]; then
    for header in unitscale/formats/*.hpp; do
      [[ ! -e $header || -n ${included[$header]+there} ]] || fault "include/$entry" "does not include <$header>"
    done
  fi
done

finish "numerics header"
