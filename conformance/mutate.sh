#!/bin/sh
# Breaks the sources of a copy of this tree, one fault at a time, and expects the named case of the suite to fail.
# What the mutants of tests/mutants cannot reach is broken here: the client itself, and the scripts of stores.
# What it prints fits the second table of docs/mutants.md.
#
#   conformance/mutate.sh [PATTERN]        only the faults whose names match
#   DRY=1 conformance/mutate.sh [PATTERN]  only whether each finds what it changes
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT INT TERM
(cd "$root" && git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf -) | tar -C "$copy" -xf -
# A build folder of its own: cargo takes packages at the same place in two workspaces for the same, and would mix them up.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}/mutants"
pattern=${1:-.}
survivors=0

# fault NAME FILE PERL-SUBSTITUTION STORE CASE
fault() {
    echo "$1" | grep -q "$pattern" || return 0
    cd "$copy"
    cp "$2" "$2.kept"
    perl -0pi -e "$3" "$2"
    if cmp -s "$2" "$2.kept"; then
        echo "BROKEN   $1: nothing to change in $2"
        survivors=$((survivors + 1))
        return 0
    fi
    if [ -n "${DRY:-}" ]; then
        mv "$2.kept" "$2"
        return 0
    fi
    case $4 in
    memory) set -- "$1" "$2" "$3" "$4" "$5" -p onelock-conformance --test memory ;;
    redis) set -- "$1" "$2" "$3" "$4" "$5" -p onelock-redis --test conformance ;;
    zookeeper) set -- "$1" "$2" "$3" "$4" "$5" -p onelock-zk --test conformance ;;
    postgres) set -- "$1" "$2" "$3" "$4" "$5" -p onelock-sql --features postgres --test conformance_postgres ;;
    postgres-session) set -- "$1" "$2" "$3" "$4" "$5" -p onelock-sql --features postgres --test conformance_postgres_session ;;
    sessions) set -- "$1" "$2" "$3" "$4" "$5" -p onelock-sql --features postgres --test session ;;
    sqlite) set -- "$1" "$2" "$3" "$4" "$5" -p onelock-sql --features sqlite --test conformance_sqlite ;;
    quorum) set -- "$1" "$2" "$3" "$4" "$5" -p onelock-conformance --test quorum_suite ;;
    sim) set -- "$1" "$2" "$3" "$4" "$5" -p onelock-conformance --test quorum_sim ;;
    models) set -- "$1" "$2" "$3" "$4" "$5" -p onelock-core --test models ;;
    gate) set -- "$1" "$2" "$3" "$4" "$5" -p onelock-redis --test store ;;
    core) set -- "$1" "$2" "$3" "$4" "$5" -p onelock-core --test guard_races ;;
    unit) set -- "$1" "$2" "$3" "$4" "$5" -p onelock-core --lib ;;
    url) set -- "$1" "$2" "$3" "$4" "$5" -p onelock --lib ;;
    slow) set -- "$1" "$2" "$3" "$4" "$5" -p onelock-core --test slow_store ;;
    client) set -- "$1" "$2" "$3" "$4" "$5" -p onelock-core --test client ;;
    votes) set -- "$1" "$2" "$3" "$4" "$5" -p onelock-core --test quorum ;;
    members) set -- "$1" "$2" "$3" "$4" "$5" -p onelock-redis --test store ;;
    esac
    name=$1 file=$2 shown=$5 case="$4::$5"
    case $4 in
    sim | core | models | unit | url | slow | client | votes) case=$5 ;;
    gate | members) case="quorum_$4::$5" ;;
    sessions) case="postgres::$5" ;;
    esac
    shift 5
    if ! cargo test --quiet "$@" --no-run >"$copy/log" 2>&1; then
        echo "BROKEN   $name: does not compile"
        tail -20 "$copy/log"
        survivors=$((survivors + 1))
    elif began=$(date +%s) && cargo test --quiet "$@" -- --exact "$case" >"$copy/log" 2>&1; then
        echo "LIVES    $name: $case passes"
        survivors=$((survivors + 1))
    else
        # What the panic says, or, of a case of the suite, the line below its name.
        said=$(sed -n "/^---- $case/,\$p" "$copy/log" | awk 'NR == 2 { first = $0 }
            told { print; first = ""; exit } /panicked at/ { told = 1 } END { if (first != "") print first }' |
            sed 's/^.*\.rs:[0-9]*: //; s/|/\\|/g' | cut -c1-120)
        # Ended from outside, as where it takes all memory: nobody has named the fault.
        [ -n "$said" ] || survivors=$((survivors + 1)) said="BROKEN: ended without a word"
        echo "| $name | \`$shown\` | $said | $(($(date +%s) - began)) |"
    fi
    mv "$file.kept" "$file"
}

client=lock-core/src/client
fault "deadline from the reply's time (acquire)" $client/acquire.rs \
    's/let now = client\.clock\.now\(\);\n    let answer = match standing/let now = client.clock.now();\n    let sent = now;\n    let answer = match standing/' \
    memory deadline_is_before_the_store
fault "deadline from the reply's time (renewal)" $client/entry/mod.rs \
    's/state\.apply\(&self\.upkeep, sent, now, answer\)/state.apply(\&self.upkeep, now, now, answer)/' \
    memory deadline_is_before_the_store
fault "deadline from the asked lease, not the given one" $client/entry/state.rs \
    's/\n(\s*)grant\.lease\n/\n$1grant.lease.max(self.lease)\n/' \
    memory deadline_follows_what_the_store_gave
fault "is_held remembers and does not look" $client/guard.rs \
    's/self\.held\(\)\.is_ok\(\)/!matches!(self.entry().view(Timestamp::default()), super::entry::View::Over(_))/' \
    memory first_look_after_a_stall
fault "no look at the time after the answer" $client/acquire.rs \
    's/handle\.entry\.receive\(now\)/handle.entry.receive(sent)/' \
    memory late_answer_is_no_hold
fault "entering again gives a new token" $client/guard.rs \
    's/entry\.token\(\)\.ok_or_else\(\|\| (self\.lost_error\(LossReason::NotHeld\))\)\n/FencingToken::new(entry.token().ok_or_else(|| $1)?.get() + i64::from(self.hold.guards.load(Ordering::Acquire)) - 1)\n/' \
    memory reentry
fault "renewal skipped by the keeper" $client/renewer.rs \
    's/entries\.push\(entry\);\n\s*due\.push\(renewal\);/drop((entry, renewal));/' \
    memory renewal_is_kept_up
fault "the deadline is not looked at" $client/entry/state.rs \
    's/now >= self\.end\(\) \{/now >= self.end() + Duration::from_secs(3600) {/' \
    memory first_look_after_a_stall
fault "a late push counts" $client/entry/mod.rs \
    's/let good = ours && state\.phase == Phase::Waiting;/let good = ours; state.deadline = now + state.lease; state.phase = Phase::Waiting;/' \
    memory late_wake_of_a_stalled_process
fault "an abandoned acquire is not given back" $client/acquire.rs \
    's/if may_have_joined\(answer\) \{/if may_have_joined(answer) \&\& false {/' \
    redis cancelled_acquires_leave_nothing
fault "an unclear acquire is not given back" $client/acquire.rs \
    's/settle_unclear\(client, request, &asked\);//' \
    memory lost_reply_to_acquire_is_given_back
fault "a dropped guard is not given back" $client/acquire.rs \
    's/self\.client\.give_back\(&self\.entry\);\n//' \
    memory drop_in_every_state
fault "max_hold is forgotten" $client/entry/state.rs \
    's/self\.hold_until = upkeep\.max_hold\.map\(\|hold\| now \+ hold\);/let _ = (upkeep.max_hold, now);/' \
    memory max_hold_ends_it
fault "a lock lost by the clock is given back at once" $client/renewer.rs \
    's/client\.settle\(&entry, now\);\n/client.give_back(\&entry);\n            client.schedule.track(\&entry);\n/' \
    memory lost_locks_stay_until_their_guard_goes
fault "a lost lock is given back in its lock-delay" $client/entry/mod.rs \
    's/let delayed = lost \&\& /let delayed = false \&\& lost \&\& /' \
    memory lost_locks_stay_until_their_guard_goes
fault "an event of a waiter that asks for itself stays due" $client/renewer.rs \
    's/client\.schedule\.track\(&entry\);\n(\s*)if let Some\(renewal\) = renewal \{/if let Some(renewal) = renewal {\n$1    client.schedule.track(\&entry);/' \
    slow runtimes::a_renewer_whose_waiter_asks_for_itself_lets_other_tasks_run
fault "a grant that nobody receives is renewed" $client/entry/state.rs \
    's/Phase::Held => self\.received \&\& \(/Phase::Held => (/; s/if self\.phase == Phase::Held \&\& !self\.received \{/if false {/' \
    slow lapsing::a_grant_that_no_caller_receives_goes_on_to_the_next
fault "an outage looks like a busy lock" $client/progress.rs \
    's/if learned\.others_ahead \{/if learned.others_ahead || true {/' \
    slow failing::a_timeout_tells_a_busy_lock_from_a_store_that_does_not_answer
fault "an evicted waiter joins again" $client/acquire.rs \
    's/if reason == LossReason::NotHeld && cause\.is_none\(\) \{/if false {/' \
    slow failing::an_evicted_waiter_does_not_join_again
fault "what failed acquires have left is released all at once" $client/tries.rs \
    's/AT_ONCE: usize = 8;/AT_ONCE: usize = 8_000;/' \
    slow failing::what_failed_acquires_leave_is_repeated_a_few_at_a_time
fault "who asks for the next answer gets the one under way" lock-core/src/toolkit/single_flight.rs \
    's/answer\.subscribe\(\)\);/answer.subscribe()).filter(|_| false);/' \
    unit toolkit::single_flight::tests::who_asks_for_the_next_gets_no_answer_to_what_began_before
fault "a close gives back what a guard has" $client/close.rs \
    's/(LossReason::Closed\);.*?)client\.settle\(entry, now\);/$1client.give_back(entry);\n        client.schedule.track(entry);/s' \
    client closing::a_closed_client_gives_back_no_lock_under_work
fault "renewals one by one" $client/renewer.rs \
    's/client\.capabilities\.max_batch\.max\(1\)/1/' \
    memory renewals_are_batched
fault "state: two give back what one owes" $client/entry/mod.rs \
    's/std::mem::take\(&mut state\.owed\)\.then/state.owed.then/' \
    core a_renewal_a_release_and_a_close
fault "state: a release ends it in one step and takes it in another" $client/entry/mod.rs \
    's/Ok\(std::mem::take\(&mut state\.owed\)\.then\(\|\| self\.numbered\(state\)\)\)\n(\s*)\}\n(\s*)\}\)/Ok(None)\n$1}\n$2}).map(|_: Option<Ticket>| {\n$2let mut state = self.state.lock();\n$2std::mem::take(\&mut state.owed).then(|| self.numbered(\&state))\n$2})/' \
    unit client::entry_tests::nobody_gives_back_what_a_release_is_about_to
fault "state: what is gone is given back" $client/entry/state.rs \
    's/self\.owed = false;//' \
    core an_eviction_is_heard_of_while_it_is_released
fault "state: a push after the end revives it" $client/entry/mod.rs \
    's/let good = ours && .*?;/let good = ours;/' \
    core a_push_after_the_end_changes_nothing
fault "state: a later end has another reason" $client/entry/mod.rs \
    's/(fn end\(&self.*?)if !matches!\(view, View::Over\(_\)\) \{/$1if view != View::Over(reason) {/s' \
    core a_renewal_a_release_and_a_close
fault "state: a late renewal revives it" $client/entry/state.rs \
    's/if !matches!\(self\.phase, Phase::Over\(_\)\) && now >= self\.end\(\) \{/self.phase = if matches!(self.phase, Phase::Over(LossReason::Expired)) \&\& now < self.end() { Phase::Held } else { self.phase }; if now >= self.end() \&\& !matches!(self.phase, Phase::Over(_)) {/' \
    core the_deadline_passes_while_it_is_renewed_and_released
fault "state: an end is not told" $client/entry/mod.rs \
    's/(fn step.*?)self\.changed\.notify_waiters\(\);/$1/s' \
    core a_renewal_and_a_release
fault "model: one permit too many" lock-core/src/model/mode.rs \
    's/weights <= smallest\)/weights <= smallest.saturating_add(1))/' \
    models a_semaphore
fault "model: a reader beside a writer" lock-core/src/model/mode.rs \
    's/last\.shares_with\(\*next\) &&/(last.shares_with(*next) || *next == Mode::Shared) \&\&/' \
    models a_read_write_lock
fault "model: an inner release gives the lock back" $client/guard.rs \
    's/fetch_sub\(1, Ordering::AcqRel\) > 1 \{/fetch_sub(1, Ordering::AcqRel) > 1_000 {/' \
    models a_reentrant_mutex
fault "model: what is lost is entered again" $client/hold.rs \
    's/if let View::Over\(reason\) = self\.view\(\) \{/if let (View::Over(reason), true) = (self.view(), self.guards.load(Ordering::Acquire) > 1_000) {/' \
    models a_reentrant_mutex
fault "model: numbers start again" lock-core/src/toolkit/lines.rs \
    's/request\.epoch\.next\(\*counter\)/request.epoch.next(*counter % 3)/' \
    models a_fenced_mutex
fault "model: a busy lock is given to a second one" lock-core/src/model/mode.rs \
    's/take_while\(holds\)\.count\(\)/take_while(holds).count().max(2)/' \
    models an_owner_aware_mutex
around=lock-core/src/around
fault "sets in any order" $around/sets.rs \
    's/return Ok\(LockSet \{ locks: sorted\.into_values\(\)\.collect\(\) \}\);/let mut locks: Vec<_> = sorted.into_values().collect();\n            if std::time::Instant::now().elapsed().as_nanos() % 2 == 0 { locks.reverse() }\n            return Ok(LockSet { locks });/' \
    memory crossing_sets_all_end
fault "a set that is not completed keeps what it has" $around/sets.rs \
    's/(run\(acquire\)\.await\?\? else \{) return/$1 std::mem::forget(taken); return/' \
    memory sets_are_all_or_none
fault "a set works on without its second lock" $around/sets.rs \
    's/self\.guards\.iter\(\)\.map\(\|guard\| \(guard, Box::pin/self.guards.iter().take(1).map(|guard| (guard, Box::pin/' \
    memory sets_are_all_or_none
fault "a leader gives back before its work has ended" $around/election.rs \
    's/self\.stepping_down\.send_replace/let _ = self.guard.give_back().await;\n        self.stepping_down.send_replace/; s/_ = self\.lost\(\) => \{\}/_ = std::future::pending::<()>() => {}/' \
    memory terms_end_in_every_way
fault "a clone of a term keeps the lock" $around/election.rs \
    's/let _own = Handle \{.*?\};//' \
    unit around::election::tests::a_clone_of_a_term_keeps_no_lock_of_a_campaign_that_is_gone
fault "a leader works on when its term is lost" $around/election.rs \
    's/term\.guard\.run\(working\)\.await\.ok\(\)\.flatten\(\)/working.await/' \
    memory work_is_alone_whatever_breaks
fault "a leader that is cut off works on" $around/election.rs \
    's/term\.guard\.run\(working\)\.await\.ok\(\)\.flatten\(\)/working.await/; s/\(\) = handed_on =>/() = async { handed_on.await; std::future::pending().await } =>/' \
    memory step_down_while_cut_off
fault "a failed request ends what an observer sees" $around/election.rs \
    's/if let Ok\(leader\) = election\.leader\(\)\.await\n/let leader = election.leader().await;\n        if leader.is_err() { std::future::pending::<()>().await }\n        if let Ok(leader) = leader\n/' \
    unit around::election::tests::an_observer_outlives_an_outage
fault "a hand-over is taken twice" $around/hand_over.rs \
    's/== Release::NotHeld \{/== Release::NotHeld \&\& false {/' \
    memory used_hand_overs_are_refused
fault "who hands over releases" $around/hand_over.rs \
    's/Ok\(HandOver \{ ticket, token/client.release_later(ticket.clone(), lease, false);\n        Ok(HandOver { ticket, token/' \
    redis hand_over_survives_its_giver
fault "at_least: only the client keeps it" $client/acquire.rs \
    's/self\.upkeep\.at_least\.map_or\(self\.upkeep\.lease, .*?\)\);/self.upkeep.lease;/' \
    redis at_least_after_a_crash
fault "at_least: a release ends it" $client/give_back.rs \
    's/stay\.filter\(.*?clock\.now\(\)\)/stay.filter(|_| false)/' \
    redis at_least_after_a_crash
fault "Redis: release without the owner check" lock-redis/src/scripts/release.lua \
    "s/ and string\.sub\(alone, 1, 33\) == holder \.\. ' ' then/ then/" \
    redis owner_only
fault "Redis: all namespaces are one" lock-redis/src/keys.rs \
    's/prefix: config\.namespace\.clone\(\),/prefix: crate::RedisConfig::default().namespace,/' \
    redis name_pairs_never_meet
fault "session locks: all namespaces are one" lock-sql/src/session/names.rs \
    's/session\\0\{space\}/session\\0/' \
    postgres-session name_pairs_never_meet
fault "Redis: expired holders stay" lock-redis/src/scripts/line.lua \
    "s/local dropped = sweep\(O\)\n/local dropped = false\n/" \
    redis expired_among_living_holders
fault "Redis: no push" lock-redis/src/scripts/line.lua \
    "s/redis\.pcall\('PUBLISH', inbox, head \.\. ' ' \.\. number\)/local _ = inbox/" \
    redis only_the_promoted_are_woken
fault "Redis: each permit counts by its own limit" lock-redis/src/scripts/line.lua \
    "s/<= math\.min\(holders\.limit, limit\)/<= limit/" \
    redis permit_weights
fault "PostgreSQL: the smallest limit goes and stays" lock-sql/src/postgres/schema/0001/3_promote.sql \
    's/ELSIF f\.mixed THEN/ELSIF false THEN/' \
    postgres permit_weights
fault "ZooKeeper: who is evicted believes its watch" lock-zk/src/wait.rs \
    's/let Some\(stand\) = line\.stand\(&node\.path\) else \{ return false \};/let stand = line.stand(&node.path).unwrap_or(crate::line::Stand::Held);/' \
    zookeeper evicted_waiter_never_holds
quorum=lock-core/src/quorum
fault "quorum: half is enough" $quorum/shared.rs \
    's|self\.members\.len\(\) / 2 \+ 1|self.members.len() / 2|' \
    sim thousands_of_seeds
fault "quorum: counters are not lifted" $quorum/acquire.rs \
    's/if !shared\.capabilities\.fencing \|\| there >= shared\.majority\(\) \{/if there > 0 {/' \
    sim thousands_of_seeds
fault "quorum: late grants are kept" $quorum/fanout.rs \
    's/if may_have_joined\(&answer\) \{/if may_have_joined(\&answer) \&\& false {/' \
    sim thousands_of_seeds
fault "quorum: failed attempts are not given back" $quorum/acquire.rs \
    's/give_all_back\(shared, &request, &answers\)\.await;//' \
    sim thousands_of_seeds
fault "quorum: one member is enough to renew" $quorum/renew.rs \
    's/if vote\.held\(\) < shared\.majority\(\) \{/if vote.held() < 1 {/; s/shared\.lease\(vote\.leases\)/vote.leases.into_iter().max().unwrap_or_default()/' \
    sim a_holder_without_its_majority_knows
fault "quorum: a gate is opened and no counter lifted" $quorum/readmission.rs \
    's/gate\.open\(&view\.incarnation, floor\)/gate.open(\&view.incarnation, floor * 0)/' \
    gate a_member_that_lost_its_counter_has_no_vote_until_it_is_repaired
fault "Redis: a shut gate grants" lock-redis/src/scripts/acquire.lua \
    's/admitted\(KEYS\[6\]\)\n//' \
    gate a_member_that_lost_its_counter_has_no_vote_until_it_is_repaired
fault "Redis: a shut gate renews" lock-redis/src/scripts/renew.lua \
    's/admitted\(KEYS\[4 \* items \+ 1\]\)\n//' \
    gate a_shut_gate_renews_and_raises_nothing
fault "quorum: the next attempt meets what the last one gives back late" $quorum/acquire.rs \
    's/if shared\.is_removing\(owner\) \{/if false {/' \
    unit quorum::tests::what_a_failed_attempt_gives_back_late_takes_nothing_from_the_next_one
fault "quorum: releases go to one member" $quorum/fanout.rs \
    's/let ticket = entries\[i\]\.clone\(\)\?;/let ticket = entries[i].clone().filter(|_| i == 0)?;/' \
    quorum basic_cycle
fault "quorum: one store has two votes" $quorum/opening.rs \
    's/config\.quarantine, true\)/config.quarantine, false)/' \
    votes one_store_under_two_addresses_is_refused
fault "quorum: a late member votes before it is compared" $quorum/renew.rs \
    's/self\.vote\(member\)\.await\?;\n//' \
    members a_member_that_comes_late_is_compared_first
fault "quorum: a late member may end entries earlier" $around/lazy.rs \
    's/\|\| has\.granularity > counted\.granularity//' \
    votes a_late_member_votes_only_with_what_was_counted_on
fault "quorum: a failed look begins the quarantine anew" $quorum/readmission.rs \
    's/let open = quorum\.repair\(member, &mut seen\)\.await\.unwrap_or\(false\);/let answer = quorum.repair(member, \&mut seen).await;\n        if answer.is_err() { seen = None }\n        let open = answer.unwrap_or(false);/' \
    votes a_look_that_fails_does_not_begin_the_quarantine_anew
fault "quorum: an open gate is not looked at again" $quorum/readmission.rs \
    's/quorum\.quarantine \/ 4/quorum.quarantine * 1000/' \
    votes a_restart_is_found_though_nobody_asks_for_a_lock

fault "paused time: deadlines on boot time" src/drivers.rs \
    's/Some\(paused\) if in_process\(url\)/Some(paused) if !in_process(url)/' \
    url tests::paused_time_passes_for_stores_in_this_process
fault "one memory store on two clocks" lock-core/src/memory.rs \
    's/!store\.clock\.same\(&\*clock\)/!store.clock.same(\&*store.clock)/' \
    url tests::paused_time_passes_for_stores_in_this_process
fault "URL: what follows a # is dropped" lock-core/src/store/url.rs \
    's/if cut \|\| rest\.contains\(.#.\) \{/let rest = rest.split_once(\x27#\x27).map_or(rest, |(rest, _)| rest);\n        if cut {/' \
    unit store::url::tests::what_would_be_cut_off_is_refused_with_a_hint
fault "URL: a password with a slash names another host" lock-core/src/store/url.rs \
    's/if cut \|\| rest\.contains/if cut \&\& rest.contains/' \
    unit store::url::tests::nothing_printed_holds_a_secret
fault "a short max_ttl refuses the default waiter lease" lock-core/src/client/settings.rs \
    's/WAITER_LEASE\.min\(self\.max_ttl\)/WAITER_LEASE/' \
    unit client::settings::tests::hostile_settings_are_refused
fault "a huge lease without a margin panics" lock-core/src/model/lease.rs \
    's/lease\.saturating_sub\(lease\.mul_f64\(self\.rate\)\)/lease.mul_f64(1.0 - self.rate)/' \
    unit model::lease::tests::the_deadline_counts_from_before_the_request
fault "a lock is seen as over before its release is counted" $client/acquire.rs \
    's/let _counted = self\.client\.background\.begin\(\);//' \
    unit around::drain::tests::a_guard_that_is_going_is_waited_for
fault "a renewed lease is at risk before its renewal is late" $client/entry/state.rs \
    's/notice\.min\(self\.granted \/ 2\)/notice/' \
    unit around::risk::tests::a_wait_before_it_and_a_long_notice_put_no_lock_at_risk
fault "owner: who is not polled keeps the others waiting" $client/owner.rs \
    's/let waker = /if part.own.is_none() {\n            state.asking = Some(asking);\n            return Ok(None);\n        }\n        let waker = /' \
    client owner::a_second_acquire_goes_on_without_a_first_that_is_not_polled
fault "owner: a try takes no part in what it asks for" $client/owner.rs \
    's/part\.number != Some\(asking\.number\)/true/' \
    slow failing::a_try_of_an_owner_that_holds_nothing_asks_the_store
fault "owner: slots that are let go stay" lock-core/src/toolkit/sweep.rs \
    's/map\.retain\(.*?\);//' \
    unit client::owner::tests::slots_that_are_let_go_leave_the_map
fault "seam: a closed store is asked" lock-core/src/store/checked.rs \
    's/match \*self\.closed\.borrow\(\) \{/match false {/' \
    memory closed_backend_refuses
fault "seam: a wait outlives its client" lock-core/src/store/checked.rs \
    's/closing\.wait_for\(\|closed\| \*closed\)/std::future::pending::<()>()/' \
    unit store::checked::tests::a_closed_store_is_not_asked
fault "seam: a mode that is not declared is asked for" lock-core/src/store/checked.rs \
    's/has\.check_mode\(request\.mode, store\)\?;//' \
    unit store::checked::tests::what_is_not_declared_is_refused
fault "seam: an error has no address" lock-core/src/store/checked.rs \
    's/error\.during\(verb\)\.at\(&self\.info\.address\)/error.during(verb)/' \
    unit store::checked::tests::an_error_names_the_verb_and_the_address
fault "seam: renewals come in one part" lock-core/src/store/checked.rs \
    's/max_batch\.max\(1\)/max_batch.max(usize::MAX)/' \
    unit store::checked::tests::renewals_come_in_parts
fault "options: serde reads no other spelling" lock-core/src/toolkit/options.rs \
    's/\(\$name\) \$\(\| \$alias\)\* => \{/(\$name) => {/' \
    unit toolkit::options::tests::a_url_and_serde_read_the_same
fault "options: two spellings at once" lock-core/src/store/url.rs \
    's/if given\.next\(\)\.is_some\(\) \{/if false {/' \
    unit toolkit::options::tests::a_spelling_too_many_is_refused

[ "$survivors" -eq 0 ] || { echo "$survivors faults were not named"; exit 1; }
