#!/bin/sh
# Reads the output of the tests and prints case × store as a Markdown table: what passed (+), what does not apply (a number,
# explained below the table), what failed (FAIL). A hole without a reason is an error.
#   cargo test … | tee test.log; scripts/matrix.sh test.log
set -eu
exec awk '
/^test [a-z0-9_-]+::[a-z0-9_]+ +\.\.\. / {
    split($2, id, "::")
    store = id[1]; name = id[2]
    word = $4
    if (!(store in column)) { stores[++nstores] = store; column[store] = 1 }
    if (!(name in row)) { names[++nnames] = name; row[name] = 1 }
    if (word == "ignored") {
        reason = $0
        sub(/^.*\.\.\. ignored *\(?/, "", reason)
        sub(/\)$/, "", reason)
        if (reason == "") { print "no reason: " $0 > "/dev/stderr"; bad = 1 }
        if (!(reason in number)) { number[reason] = ++nreasons; reasons[nreasons] = reason }
        cell[name, store] = number[reason]
    } else if (word == "ok") {
        cell[name, store] = "+"
    } else {
        cell[name, store] = "FAIL"
        bad = 1
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
            line = line " " c " |"
        }
        print line; cases++
        if (used < count) { print "a hole: " names[n] > "/dev/stderr"; bad = 1 }
    }
    print ""
    for (r = 1; r <= nreasons; r++) print r ". " reasons[r]
    print ""
    print cases " cases on " count " stores"
    exit bad || !count
}
function is_store(s) { return ("capabilities_are_as_declared", s) in cell }
' "$@"
