# SPDX-License-Identifier: MIT
# Prepares a header for Doxygen. Indented lines of doc comments are formulas and stay as they are. An @ in a word stays
# an @. Line numbers do not change.
function flush_line() {
    if (held != "") print held (is_formula ? "" : " @endverbatim")
    held = ""
}
{
    is_formula = $0 ~ /^ *\/\/\/   /
    if (is_formula && held == "") sub(/\/\/\/   /, "/// @verbatim ")
    if (!is_formula && /^ *\/\/\//) gsub(/@/, "\\@")  # our comments use none of Doxygen's commands
    flush_line()
    if (is_formula) held = $0
    else print
}
END { is_formula = 0; flush_line() }
