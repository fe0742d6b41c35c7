#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Every path that a document names is there: links with their headings, and paths in text, commands and code blocks.
# So is every path in the comments of headers and examples, of which `Test: tests/...` is one. Paths of headers may
# begin at their layer. `*` stands for any text; paths with `<thing>` or `...` are patterns, of which the part before
# is checked.
# Of docs/changes.md, which names paths of the past, links alone are checked.
# Usage: document_paths.sh SOURCE_DIRECTORY
set -euo pipefail
# shellcheck source=tests/structure/layers.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/layers.sh"
cd -- "$1"

declare -A seen=() is_layer=()
for layer in "${layers[@]}" distributed; do is_layer[$layer]=1; done

there() {  # there <path>: it exists; with `*`, something matches
  if [[ $1 != *'*'* ]]; then
    [[ -e $1 ]]
  else
    compgen -G "$1" > /dev/null
  fi
}

check_path() {  # check_path <file> <line> <text that may be a path>
  local text=$3 path
  text=${text%%<*}  # up to a part in angle brackets, which stands for any name
  text=${text%%...*}
  while [[ $text == *[.,-] ]]; do text=${text%?}; done
  case $text in
    include/* | tests/* | docs/* | examples/* | bench/* | cmake/* | .ci/*) path=$text ;;
    unitscale/*) path=include/$text ;;
    experiments/*.hpp | experiments/*.cpp) path=examples/$text ;;
    */*.hpp)
      [[ -n ${is_layer[${text%%/*}]+layer} ]] || return 0
      path=include/unitscale/$text
      ;;
    *) return 0 ;;
  esac
  [[ $3 != *'<'* && $3 != *...* ]] || path=${path%/*}/  # `tests/ops/<op>_test.cpp`: its folder
  if [[ -z ${seen[$path]+known} ]]; then
    seen[$path]=1
    there "$path" || seen[$path]=0
  fi
  ((seen[$path])) || fault "$1:$2" "names $text, which is not there"
}

# Words that may be paths. Left out before: addresses, names of tests (commands.sh checks them), and of code all but
# comments.
words_of() {  # words_of <comments: 0 or 1> <file>...: lines `file:line:word`
  local comments=$1
  shift
  awk -v comments="$comments" '{
    if (comments && !sub(/^.*\/\/+/, "")) next
    if (!comments) gsub(/\]\([^)]*\)/, "]")  # links are checked below
    gsub(/https?:\/\/[^ )>]*/, "")
    gsub(/-R (\047[^\047]*\047|[^ `]+)/, "")
    while (match($0, /[A-Za-z0-9_.<>*\/+-]*\/[A-Za-z0-9_.<>*\/+-]*/)) {
      word = substr($0, RSTART, RLENGTH)
      $0 = substr($0, RSTART + RLENGTH)
      while (sub(/^(\.\.?\/|<)/, "", word)) continue
      if (word !~ /</) sub(/>.*/, "", word)
      print FILENAME ":" FNR ":" word
    }
  }' "$@"
}

headings_of() {  # headings_of <document>: the names that links give its headings
  sed -nE 's/^#+ +//p' "$1" | tr '[:upper:]' '[:lower:]' | sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}

for document in README.md docs/*.md; do
  [[ -f $document ]] || continue
  # Links, outside of code: [text](path), [text](path#heading), [text](#heading).
  while IFS=: read -r line target; do
    case $target in http://* | https://* | mailto:*) continue ;; esac
    file=${target%%#*}
    path=$document
    [[ -z $file ]] || path=$(dirname -- "$document")/$file
    if [[ ! -e $path ]]; then
      fault "$document:$line" "links to $file, which is not there"
    elif [[ $target == *'#'* ]]; then
      headings_of "$path" | grep -qxF -e "${target#*#}" ||
        fault "$document:$line" "links to $target, a heading that is not there"
    fi
  done < <(awk '/^```/ { code = !code; next }
                code { next }
                {
                  gsub(/`[^`]*`/, "`")
                  while (match($0, /\]\([^) ]+\)/)) {
                    print NR ":" substr($0, RSTART + 2, RLENGTH - 3)
                    $0 = substr($0, RSTART + RLENGTH)
                  }
                }' "$document")
done

mapfile -t sources < <(find include examples -type f \( -name '*.hpp' -o -name '*.cpp' \) 2> /dev/null | LC_ALL=C sort)
while IFS=: read -r file line word; do
  check_path "$file" "$line" "$word"
done < <(
  for document in README.md docs/*.md; do
    [[ ! -f $document || $document == docs/changes.md ]] || words_of 0 "$document"
  done
  ((${#sources[@]} == 0)) || words_of 1 "${sources[@]}"
)

finish "paths in documents"
