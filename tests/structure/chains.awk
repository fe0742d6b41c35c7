# SPDX-License-Identifier: MIT
# Sorts headers into chains, in which each header includes the one before it, directly or not.
# A file that includes a chain in order compiles each of its headers as if alone: whatever stands before a header is
# included by that header anyway. So a chain needs one compilation, where each header alone would need its own.
#
#   awk -v root=include -v stages="a.hpp b.hpp" -f chains.awk <header below root>...
#
# Prints one chain a line: a stage, then the headers. All of them include the stage, the first of the list for which
# that is true. It is `-` for headers that include none.
FNR == 1 {
  name = substr(FILENAME, length(root) + 2)
  given[++headers] = name
  is_given[name] = 1
}
/^#include <unitscale\// {
  split($0, parts, /[<>]/)
  included[name, ++direct[name]] = parts[2]
}

# Visits a header after all that it includes, and notes those. A header that is met again before that belongs to a
# circle: trainer.hpp ends with an include of a header that includes trainer.hpp. Such an include counts for nothing.
function visit(header,    i, j, other) {
  if (header in begun) return
  begun[header] = 1
  for (i = 1; i <= direct[header]; i++) {
    other = included[header, i]
    visit(other)
    if (!(other in done)) continue
    includes[header, other] = 1
    for (j = 1; j <= visited; j++) if ((other, order[j]) in includes) includes[header, order[j]] = 1
  }
  order[++visited] = header
  done[header] = 1
}

END {
  count = split(stages, stage, " ")
  for (i = 1; i <= headers; i++) visit(given[i])
  for (i = 1; i <= visited; i++) {
    header = order[i]
    if (!(header in is_given)) continue
    own = "-"
    for (j = count; j >= 1; j--) if ((header, stage[j]) in includes) own = stage[j]
    # Of the chains that may go on with this header, the one that was added to last is most like it.
    best = 0
    for (j = 1; j <= chains; j++) {
      if (stage_of[j] == own && (header, last[j]) in includes && (!best || added[j] > added[best])) best = j
    }
    if (!best) {
      best = ++chains
      stage_of[best] = own
    }
    chain[best] = chain[best] " " header
    last[best] = header
    added[best] = i
  }
  for (i = 1; i <= chains; i++) print stage_of[i] chain[i]
}
