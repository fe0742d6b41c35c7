# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: MIT
# The layers, in order, and the layers that each may include besides itself. Sourced by the checks.
layers=(base formats tensor products kernels scaling autograd record ops nn optim io analysis report train distributed)
declare -A may_include=(
  [base]=""
  [formats]="base"
  [tensor]="base formats"
  [products]="base formats tensor"
  [kernels]="base formats tensor products"
  [scaling]="base formats tensor"
  [autograd]="base tensor scaling"
  [record]="base formats tensor products kernels scaling autograd"
  [ops]="base formats tensor products kernels scaling autograd record"
  [nn]="base tensor scaling autograd ops"
  [optim]="base formats tensor kernels scaling autograd"
  [io]="base formats tensor scaling autograd"
  [analysis]="base formats tensor kernels scaling autograd io"
  [report]="base formats tensor kernels scaling autograd io analysis"
  [train]="base formats tensor products kernels scaling autograd record ops nn optim io analysis"
  [distributed]="base formats tensor products kernels scaling autograd record ops nn optim io analysis train"
)

# Headers that need nlohmann-json, as paths below include/unitscale: they are not in the umbrella header.
needs_json() {
  case $1 in
    io/json*.hpp | io/safetensors*.hpp | io/squad.hpp | report/*.hpp | train/*.hpp | distributed/*.hpp) return 0 ;;
    *) return 1 ;;
  esac
}

# Headers that need libzip: they stay outside the umbrella.
needs_zip() { [[ $1 == io/npz.hpp ]]; }

# Headers that need ICU: they stay outside the umbrella.
needs_icu() {
  case $1 in
    io/answer_*.hpp | io/unicode_words.hpp | io/wordpiece.hpp) return 0 ;;
    io/tokeniser_steps.hpp | io/json_tokeniser*.hpp) return 0 ;;
    *) return 1 ;;
  esac
}

# Headers that need PCRE2: they stay outside the umbrella.
needs_pcre2() {
  case $1 in
    io/split_pattern.hpp | io/byte_pair*.hpp | io/tokeniser_steps.hpp | io/json_tokeniser*.hpp) return 0 ;;
    *) return 1 ;;
  esac
}

# Headers that need SentencePiece: they stay outside the umbrella.
needs_sentencepiece() { [[ $1 == io/sentencepiece.hpp ]]; }

# Headers that need MPI: they stay outside the umbrella.
needs_mpi() { [[ $1 == distributed/*.hpp ]]; }

# Headers that need POSIX: they stay outside the umbrella.
needs_posix() {
  case $1 in
    base/child_process.hpp | base/wait_briefly.hpp | io/atomic_file.hpp | io/atomic_folder.hpp | io/mapped_file.hpp | \
      io/npy.hpp | io/npz.hpp | io/wordpiece.hpp) return 0 ;;
    *) return 1 ;;
  esac
}

faults=0
fault() {  # fault <file> <description of the fault>
  printf '%s: %s\n' "$1" "$2"
  faults=$((faults + 1))
}

# Ends a check, with status 1 after a fault.
finish() {  # finish <name of the check>
  if ((faults > 0)); then
    printf '%s: %d fault(s)\n' "$1" "$faults"
    exit 1
  fi
  printf '%s: good\n' "$1"
}
