# chat.sh - krait generate at a terminal, by Python's pty.
if python3 -c 'import pty, termios' 2>/dev/null; then
    python3 tests/cli/chat.py "$krait" tests/golden/official_lm/mamba2 "$work" >"$work/claims" 2>&1
    rc=$?
    while read -r line; do
        case $line in
        pass*) pass ;;
        *) fail chat "$line" ;;
        esac
    done <"$work/claims"
    equal "chat: status" $rc 0
else
    skip chat "python3 with a pty module is not there"
fi
