# runner.sh - sourced by ./test and tools/device_tests: runs programs in parallel, counts their tests, reports.
#
#   start_runner 2                            two slots: as many programs, or compilers of a build, run at a time
#   build NAME FOLDER PRESET OPTION...        configures and builds in the background, after the builds begun before
#   built NAME                                waits for a build; fails if it failed
#   suite NAME COMMAND...                     begins a program that ends with "N passed, N failed[, N skipped]"
#   parts=3 suite NAME COMMAND...             begins it as three programs that share its tests (KR_TEST_PART)
#   step NAME COMMAND...                      runs a command that either works or fails: one test; its output is $logs/step
#   skip NAME WHY                             counts one skipped test
#   thinned TEXT                              a line for the end: what a tier leaves out
#   finish                                    waits for all suites
#   total                                     the lines of `thinned`, then "N passed, N failed[, N skipped]"; fails if a test did
#
# A suite is killed after $limit seconds (300). One that prints no count, exits with another status than its count says, or ran
# no test at all counts as one failure; so does a build that fails. $before_suite, if set, is a function that is called before
# each program, in its process, to set its environment. Builds take their slots as jobs of make from the same pool as suites
# (make's job server), so that a build fills the processors that the suites before it leave idle.

passed=0 failed=0 skipped=0
limit=300 parts=1 before_suite=
count_line='^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$'
started=() shown=0 thin_lines=() last_build= beginning=

start_runner() { # SLOTS
    slots=0
    logs=$(mktemp -d)
    trap end_runner EXIT
    trap 'exit 130' INT TERM
    mkfifo "$logs/slots"
    exec 8<>"$logs/slots" 9<>"$logs/slots" # 8 is for make, which makes its own descriptor non-blocking
    set_slots "$1"
}
end_runner() {
    local left
    left=$(jobs -p)
    # shellcheck disable=SC2086  # a list of processes
    [ -z "$left" ] || kill $left 2>/dev/null
    rm -rf "$logs"
}

# set_slots N - from now on; waits for slots that are in use if there are to be fewer.
set_slots() {
    while [ "$slots" -lt "$1" ]; do give_slot && slots=$((slots + 1)); done
    while [ "$slots" -gt "$1" ]; do take_slot && slots=$((slots - 1)); done
}
take_slot() { local slot; read -r -n 1 -u 9 slot; }
give_slot() { printf + >&9; }
seconds_since() { awk "BEGIN { print $EPOCHREALTIME - $1 }"; }

# report NAME SECONDS PASSED FAILED SKIPPED LOG
report() {
    passed=$((passed + $3)) failed=$((failed + $4)) skipped=$((skipped + $5))
    local text="$3 passed, $4 failed"
    [ "$5" = 0 ] || text+=", $5 skipped"
    printf '%-28s %6.1f s   %s\n' "$1" "$2" "$text"
    [ "$4" = 0 ] || sed 's/^/    /' "$6"
}
skip() { # NAME WHY
    skipped=$((skipped + 1))
    printf '%-28s            skipped: %s\n' "$1" "$2"
}

step() { # NAME COMMAND...
    local name=$1 start=$EPOCHREALTIME rc
    shift
    "$@" >"$logs/step" 2>&1 </dev/null
    rc=$?
    report "$name" "$(seconds_since "$start")" $((rc == 0)) $((rc != 0)) 0 "$logs/step"
    return $rc
}

# ---- builds ----

configure_and_build() { # FOLDER PRESET OPTION...
    local folder=$1 preset=$2
    shift 2
    cmake --preset "$preset" -B "$folder" "$@" || return
    MAKEFLAGS="-j --jobserver-auth=8,8" cmake --build "$folder" 2>&1 | grep -v '^\[ *[0-9]*%\]' # without the lines of progress
    return "${PIPESTATUS[0]}"
}
build() { # NAME FOLDER PRESET OPTION...
    local to=$logs/build-$1 after=$last_build
    shift
    last_build=$to
    (
        [ -z "$after" ] || until [ -e "$after.end" ]; do sleep 1; done
        take_slot # which make takes for granted
        start=$EPOCHREALTIME
        configure_and_build "$@" >"$to" 2>&1 </dev/null
        rc=$?
        give_slot
        echo "$rc $(seconds_since "$start")" >"$to.new"
        mv "$to.new" "$to.end"
    ) &
}
built() { # NAME
    local to=$logs/build-$1 rc seconds
    until [ -e "$to.end" ]; do
        show_ended
        sleep 0.5
    done
    show_ended
    read -r rc seconds <"$to.end"
    if [ "$rc" = 0 ]; then
        printf '%-28s %6.1f s\n' "$1: build" "$seconds"
    else
        report "$1: build" "$seconds" 0 1 0 "$to"
        return 1
    fi
}

# ---- suites ----

suite() { # NAME COMMAND...
    local name=$1 part
    shift
    beginning=$name
    for ((part = 0; part < parts; part++)); do
        take_slot
        show_ended
        local to=$logs/${#started[@]}
        printf '%s\n' "$name" >"$to.name"
        {
            local start=$EPOCHREALTIME
            [ -z "$before_suite" ] || "$before_suite"
            [ "$parts" = 1 ] || export KR_TEST_PART=$part/$parts
            # 8 and 9 are closed, and interrupts, which shells let jobs in the background ignore, are heard again through timeout.
            timeout "$limit" "$@" >"$to" 2>&1 </dev/null 8>&- 9>&-
            echo "$? $(seconds_since "$start") $*" >"$to.new"
            mv "$to.new" "$to.end"
            give_slot
        } 2>/dev/null & # without the shell's own remark on a crash
        started+=("$to")
    done
    beginning=
}

# add_part FILE - what one program printed, to the totals of its suite: p f s seconds; and to the log if it failed.
add_part() {
    local rc took command last a=0 b=0 c=0
    read -r rc took command <"$1.end"
    last=$(grep -E "$count_line" "$1" | tail -n 1)
    [ -z "$last" ] || read -r a b c < <(sed -E 's/[^0-9]+/ /g' <<<"$last")
    if [ -z "$last" ] || { [ "$rc" != 0 ] && [ "$b" = 0 ]; }; then
        echo "($command ended with exit status $rc${last:+ but counted no failure})" >>"$1"
        b=$((b + 1))
    fi
    p=$((p + a)) f=$((f + b)) s=$((s + ${c:-0}))
    seconds=$(awk "BEGIN { print (($took > $seconds) ? $took : $seconds) }")
    [ "$b" = 0 ] || cat "$1" >>"$logs/log"
}

# show_ended - a line for each suite that has ended, in the order in which they began.
show_ended() {
    local p f s seconds last to name
    while [ $shown -lt ${#started[@]} ]; do
        name=$(<"${started[shown]}.name") last=$shown
        [ "$name" != "$beginning" ] || return 0
        while [ $last -lt ${#started[@]} ] && [ "$(<"${started[last]}.name")" = "$name" ]; do
            [ -e "${started[last]}.end" ] || return 0
            last=$((last + 1))
        done
        p=0 f=0 s=0 seconds=0
        : >"$logs/log"
        for to in "${started[@]:shown:last-shown}"; do add_part "$to"; done
        if [ $((p + f + s)) = 0 ] && [ -z "${filter-}" ]; then
            echo "(no test was run)" >>"$logs/log"
            f=1
        fi
        [ $((p + f + s)) = 0 ] || report "$name" "$seconds" "$p" "$f" "$s" "$logs/log"
        shown=$last
    done
}

finish() {
    until show_ended && [ $shown = ${#started[@]} ]; do sleep 0.2; done
}

# ---- the end ----

thinned() { thin_lines+=("$1"); }
total() {
    local text
    finish
    [ ${#thin_lines[@]} = 0 ] || printf '%s\n' "${thin_lines[@]}"
    text="$passed passed, $failed failed"
    [ $skipped = 0 ] || text+=", $skipped skipped"
    echo "$text"
    [ $failed = 0 ]
}
