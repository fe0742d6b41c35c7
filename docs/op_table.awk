# SPDX-License-Identifier: MIT
# Writes the rows of the op table from the op headers. Each header is given twice: the first pass collects options, the
# second the ops. Called by op_table.sh.

function trim(text) {
    gsub(/^[ \t]+|[ \t]+$/, "", text)
    return text
}
# Text for a cell of the table: a bar would end the cell, so it is escaped.
function cell(text) {
    gsub(/\|/, "\\|", text)
    return text
}
function fault(what) {
    printf "%s: %s\n", FILENAME, what > "/dev/stderr"
    faults++
}

# Splits a list at its outermost commas into `part`, without defaults. Returns the number of parts.
function split_list(list,    depth, i, letter, current, count) {
    list = list ","
    for (i = 1; i <= length(list); i++) {
        letter = substr(list, i, 1)
        if (letter ~ /[<({[]/) depth++
        if (letter ~ /[>)}\]]/) depth--
        if (letter != "," || depth > 0) {
            current = current letter
            continue
        }
        sub(/ = .*|\{.*/, "", current)
        part[++count] = trim(current)
        current = ""
    }
    return count
}

# Names the arguments of a call, options by their members: "Variable<T> x, const GeluOptions& options = {}" gives
# "x, {.mult, .constraint}".
function argument_names(list,    count, i, names) {
    count = split_list(list)
    for (i = 1; i <= count; i++) {
        if (match(part[i], /[A-Za-z0-9]+Options/)) {
            part[i] = substr(part[i], RSTART, RLENGTH)
            if (!(part[i] in members)) fault("unknown options " part[i])
            part[i] = "{" members[part[i]] "}"
        } else {
            sub(/^.*[ &*]/, "", part[i])
        }
        names = names (i == 1 ? "" : ", ") part[i]
    }
    return names
}

function forget() {
    formula = rule = prose = ""
    in_rule = formula_done = 0
}

# Reads one line of a doc comment, without the slashes.
function take(line) {
    if (line ~ /^  / && !formula_done) {
        gsub(/,?  +/, "; ", line)
        sub(/^; /, "", line)
        gsub(/`/, "", line)
        formula = formula (formula == "" ? "" : "<br>") "`" cell(line) "`"
        return
    }
    if (formula != "") formula_done = 1
    gsub(/  +/, " ", line)
    line = trim(line)
    prose = prose (prose == "" ? "" : " ") line
    if (line ~ /^(Factors|No rule under|Under `unit`)/) in_rule = 1
    if (in_rule) {
        rule = rule (rule == "" ? "" : " ") line
        if (line ~ /[.]$/) in_rule = 0
    }
}

# Reads a short comment's prose: the first sentence is the formula, the sentences on alpha and beta are the rule.
function take_from_prose(    sentences, count, i) {
    count = split(prose, sentences, /[.] /)
    if (formula == "") formula = cell(sentences[1])
    if (rule != "") return
    for (i = 1; i <= count; i++)
        if (sentences[i] ~ /alpha|beta|`unit`/ && sentences[i] != formula) rule = rule sentences[i] ". "
}

FNR == 1 {
    if (signature != "") fault("the declaration before it does not end: " signature)
    forget()
    collecting = signature = ""
}

# First pass: members of options.
pass == 1 && /^struct [A-Za-z0-9]+Options \{/ { collecting = $2; members[collecting] = ""; next }
pass == 1 && /^};/ { collecting = "" }
pass == 1 && collecting != "" && /;/ && !/^ *\/\// {
    line = $0
    sub(/;.*/, "", line)
    count = split_list(line)
    for (i = 1; i <= count; i++) {
        sub(/^.* /, "", part[i])
        members[collecting] = members[collecting] (members[collecting] == "" ? "" : ", ") "." part[i]
    }
}
pass == 1 { next }

/^\/\/\// {
    take(substr($0, 5))
    next
}
/^template/ { next }
/^\[\[nodiscard\]\]/ || signature != "" {
    signature = signature (signature == "" ? "" : " ") trim($0)
    if ($0 !~ /[{;}]$/) next
    head = signature
    sub(/\(.*/, "", head)
    op = head
    sub(/^.* /, "", op)
    # Without gradient: functions that return integers and say so. Helpers say nothing of factors.
    integers = head ~ /Tensor<std::u?int[0-9]+_t>/ && rule ~ /^Factors under `unit`: none/
    if ((head ~ /Variable<T>/ || integers) && op !~ /^record_/ && !(prose == "" && op in seen)) {
        arguments = substr(signature, length(head) + 2)
        sub(/\)[^)]*$/, "", arguments)
        take_from_prose()
        sub(/ (Errors?|Rounding|Reference|Test): .*/, "", rule)
        sub(/^(Errors?|Rounding|Reference|Test): .*/, "", rule)
        sub(/^Factors( under `unit`)?[:,]? /, "", rule)
        rule = trim(rule)
        if (prose == "") fault(op ": has no doc comment")
        else if (rule == "") fault(op ": its doc comment says nothing of its factors under `unit`")
        seen[op] = 1
        file = FILENAME
        sub(/^.*\//, "", file)
        test = file  # tests mirror headers
        sub(/\.hpp$/, "", test)
        printf "| [`%s`](../include/unitscale/ops/%s) | `%s(%s)` | %s | %s |", \
               op, file, op, cell(argument_names(arguments)), formula, cell(rule)
        printf " `ctest --test-dir build/tests -R '^ops/%s$'` |\n", test
    }
    signature = ""
    forget()
    next
}
{ forget() }

END { exit faults > 0 }
