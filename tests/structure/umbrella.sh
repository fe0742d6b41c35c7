#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# include/unitscale/unitscale.hpp includes every header once, in the order of the layers, but for those that need
# nlohmann-json, libzip or POSIX files; and nothing else.   Usage: umbrella.sh SOURCE_DIRECTORY
set -euo pipefail
# shellcheck source=tests/structure/layers.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/layers.sh"
cd -- "$1"

umbrella=include/unitscale/unitscale.hpp
if [[ ! -f $umbrella ]]; then
  fault "$umbrella" "is not there"
  finish "umbrella header"
fi

declare -A included=() rank=()
for i in "${!layers[@]}"; do rank[${layers[i]}]=$i; done
last=0
while IFS= read -r line; do
  if ! [[ $line =~ ^\#include\ \<unitscale/([a-z0-9_]+)/([a-z0-9_]+)\.hpp\> ]]; then
    fault "$umbrella" "'$line' is not #include <unitscale/<layer>/<thing>.hpp>"
    continue
  fi
  layer=${BASH_REMATCH[1]} name="${BASH_REMATCH[1]}/${BASH_REMATCH[2]}.hpp"
  if [[ -z ${rank[$layer]+known} || ! -f include/unitscale/$name ]]; then
    fault "$umbrella" "includes $name, which is not there"
    continue
  fi
  [[ -z ${included[$name]+twice} ]] || fault "$umbrella" "includes $name twice"
  included[$name]=1
  ((rank[$layer] >= last)) || fault "$umbrella" "includes $name after a later layer"
  last=${rank[$layer]}
  ! needs_json "$name" || fault "$umbrella" "includes $name, which needs nlohmann-json"
  ! needs_zip "$name" || fault "$umbrella" "includes $name, which needs libzip"
  ! needs_posix "$name" || fault "$umbrella" "includes $name, which needs POSIX files"
done < <(grep -E '^[[:space:]]*#[[:space:]]*include' "$umbrella" || true)

for layer in "${layers[@]}"; do
  for header in "include/unitscale/$layer"/*.hpp; do
    name=${header#include/unitscale/}
    if [[ -e $header && -z ${included[$name]+there} ]] && ! needs_json "$name" && ! needs_zip "$name" &&
      ! needs_posix "$name"; then
      fault "$umbrella" "does not include $name"
    fi
  done
done

finish "umbrella header"
