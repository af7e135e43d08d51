#!/bin/sh
# Reads the output of the tests (whether they passed is for their own exit code to say) and prints case × store as a Markdown table: what passed (+), what does not apply (a number,
# explained below the table), what failed (FAIL). A hole without a reason is an error.
#   cargo test … | tee test.log; scripts/matrix.sh test.log
set -eu
exec awk '
/^test [a-z0-9_-]+::[a-z0-9_]+ +\.\.\. / {
    split($2, id, "::")
    store = id[1]; name = id[2]
    word = $4
    sub(/,$/, "", word)
    if (!(store in column)) { stores[++nstores] = store; column[store] = 1 }
    if (!(name in row)) { names[++nnames] = name; row[name] = 1 }
    if (word == "ignored") {
        reason = $0
        sub(/^.*\.\.\. ignored *\(?/, "", reason)
        sub(/\)$/, "", reason)
        sub(/^, */, "", reason)
        if (reason == "") { print "no reason: " $0; bad = 1 }
        cell[name, store] = "ignored"
        why[name, store] = reason
    } else if (word == "ok") {
        cell[name, store] = "+"
    } else {
        cell[name, store] = "FAIL"
    }
}
END {
    # A store is what has the first case of the suite.
    line = "| case |"; rule = "|---|"
    for (s = 1; s <= nstores; s++) if (is_store(stores[s])) { line = line " " stores[s] " |"; rule = rule ":-:|"; count++ }
    print line; print rule
    for (n = 1; n <= nnames; n++) {
        # Other tests have names of two words, too: the cases are what the memory store lists.
        if (!((names[n], "memory") in cell)) continue
        line = "| " names[n] " |"; used = 0
        for (s = 1; s <= nstores; s++) if (is_store(stores[s])) {
            c = cell[names[n], stores[s]]
            if (c != "") used++
            if (c == "FAIL") bad = 1
            if (c == "ignored") c = numbered(why[names[n], stores[s]])
            line = line " " c " |"
        }
        print line; cases++
        if (used < count) { holes = holes "a hole: " names[n] "\n"; bad = 1 }
    }
    print ""
    for (r = 1; r <= nreasons; r++) print r ". " reasons[r]
    print ""
    printf "%s", holes
    print cases " cases on " count " stores"
    exit bad || !count
}
function numbered(reason) {
    if (!(reason in number)) { number[reason] = ++nreasons; reasons[nreasons] = reason }
    return number[reason]
}
function is_store(s) { return ("capabilities_are_as_declared", s) in cell }
' "$@"
