#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Every header includes only the layers that its own layer may include, by full path; Eigen and xtensor are named in
# one header only, other libraries in few.   Usage: include_rules.sh SOURCE_DIRECTORY
set -euo pipefail
# shellcheck source=tests/structure/layers.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/layers.sh"
cd -- "$1/include"

while IFS= read -r file; do
  # These three are checked by scripts of their names.
  case $file in unitscale/unitscale.hpp | unitscale/numerics.hpp | unitscale/compiled.hpp) continue ;; esac
  if ! [[ $file =~ ^unitscale/([a-z0-9_]+)/([a-z0-9_]+)\.hpp$ ]] ||
    [[ -z ${may_include[${BASH_REMATCH[1]}]+known} ]]; then
    fault "include/$file" "headers live at unitscale/<layer>/<thing>.hpp, with a known layer and snake_case names"
    continue
  fi
  layer=${BASH_REMATCH[1]} name=${file#unitscale/}
  while IFS= read -r line; do
    if ! [[ $line =~ ^[[:space:]]*\#[[:space:]]*include[[:space:]]*(.*)$ ]]; then continue; fi
    what=${BASH_REMATCH[1]}
    if ! [[ $what =~ ^\<([^\>]+)\> ]]; then
      fault "include/$file" "includes $what: every include is a full path in angle brackets"
      continue
    fi
    path=${BASH_REMATCH[1]}
    case $path in
      unitscale/unitscale.hpp) fault "include/$file" "includes the umbrella header" ;;
      unitscale/*)
        if ! [[ $path =~ ^unitscale/([a-z0-9_]+)/[a-z0-9_]+\.hpp$ ]]; then
          fault "include/$file" "includes <$path>: not at unitscale/<layer>/<thing>.hpp"
          continue
        fi
        other=${BASH_REMATCH[1]}
        if [[ $other != "$layer" && " ${may_include[$layer]} " != *" $other "* ]]; then
          fault "include/$file" "layer $layer may not include <$path>"
        elif [[ ! -f $path ]]; then
          fault "include/$file" "includes <$path>, which is not there"
        elif needs_json "${path#unitscale/}" && ! needs_json "$name"; then
          fault "include/$file" "includes <$path>, which needs nlohmann-json"
        elif needs_zip "${path#unitscale/}" && ! needs_zip "$name"; then
          fault "include/$file" "includes <$path>, which needs libzip"
        elif needs_icu "${path#unitscale/}" && ! needs_icu "$name"; then
          fault "include/$file" "includes <$path>, which needs ICU"
        elif needs_pcre2 "${path#unitscale/}" && ! needs_pcre2 "$name"; then
          fault "include/$file" "includes <$path>, which needs PCRE2"
        elif needs_sentencepiece "${path#unitscale/}" && ! needs_sentencepiece "$name"; then
          fault "include/$file" "includes <$path>, which needs SentencePiece"
        elif needs_mpi "${path#unitscale/}" && ! needs_mpi "$name"; then
          fault "include/$file" "includes <$path>, which needs MPI"
        elif needs_posix "${path#unitscale/}" && ! needs_posix "$name" && ! needs_json "$name"; then
          fault "include/$file" "includes <$path>, which needs POSIX files"
        fi
        ;;
      Eigen/* | unsupported/Eigen/* | eigen3/* | xtensor/* | xtensor-*/* | xtl/* | xsimd/*)
        [[ $name == tensor/backend.hpp ]] || fault "include/$file" "includes <$path>: only tensor/backend.hpp may" ;;
      nlohmann/*) needs_json "$name" ||
        fault "include/$file" "includes <$path>: only io/json*, io/safetensors*, io/squad, report, train and \
distributed may" ;;
      zip.h) needs_zip "$name" || fault "include/$file" "includes <zip.h>: only io/npz.hpp may" ;;
      unicode/*) needs_icu "$name" ||
        fault "include/$file" "includes <$path>: only io/answer_*, io/unicode_words, io/wordpiece, \
io/tokeniser_steps and io/json_tokeniser* may" ;;
      pcre2.h) needs_pcre2 "$name" || fault "include/$file" "includes <pcre2.h>: only io/split_pattern.hpp may" ;;
      sentencepiece_*) needs_sentencepiece "$name" ||
        fault "include/$file" "includes <$path>: only io/sentencepiece.hpp may" ;;
      mpi.h) needs_mpi "$name" || fault "include/$file" "includes <mpi.h>: only distributed may" ;;
      fcntl.h | sys/file.h | sys/stat.h) needs_posix "$name" || needs_json "$name" ||
        fault "include/$file" "includes <$path>: only io/atomic_file.hpp and headers that need it may" ;;
      unistd.h | sys/* | signal.h | pthread.h | dlfcn.h)
        # products/pair_kernels.hpp asks Linux for tile registers, and compiles without Linux.
        [[ $layer == base || $layer == io || $name == products/pair_kernels.hpp ]] ||
          fault "include/$file" "includes <$path>: only base and io may" ;;
      omp.h) [[ $layer == base ]] || fault "include/$file" "includes <omp.h>: only base may" ;;
      catch2/* | CLI/*) fault "include/$file" "includes <$path>: tests and examples only" ;;
    esac
  done < <(grep -E '^[[:space:]]*#[[:space:]]*include' "$file" || true)
  # -march and macros change the rules by which containers of Eigen and xtensor allocate.
  # Units compiled with different flags would crash together: we use Tensor and Scratch, and their maps as views.
  [[ $name == tensor/backend.hpp ]] && continue
  while IFS= read -r line; do
    fault "include/$file:${line%%:*}" "names a container of Eigen or xtensor: ${line#*:}"
  done < <(grep -nE '\b(Eigen::(Matrix|Array|Vector|RowVector)|xt::(xarray|xtensor)\b)' "$file" |
    grep -vE '^[0-9]+:[[:space:]]*//' || true)
done < <(find unitscale -type f | LC_ALL=C sort)

finish "include rules"
