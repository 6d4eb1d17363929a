#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# pages.sh TOOL: the man pages and completions that the tool writes. Linters and shells that are not
# installed are left out, with a line that says so.
set -u
tool=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
n_failed=0

fail() {
    echo "FAILED: $*"
    n_failed=$((n_failed + 1))
}

has() {
    command -v "$1" >/dev/null 2>&1 && return 0
    echo "$1 is not installed: not checked with it"
    return 1
}

"$tool" pages "$dir" || fail "lockstep pages"
commands=$("$tool" --help | sed -n 's/^  \([a-z]*\) .*/\1/p')
[ "$(echo "$commands" | wc -w)" -ge 8 ] || fail "too few commands: $commands"

# Every flag that --help=all lists, and nothing else, is in each page.
for command in $commands; do
    page=$dir/man1/lockstep-$command.1
    [ -s "$page" ] || { fail "no page $page"; continue; }
    "$tool" "$command" --help=all | grep -o -E '^  (-., |    )?--[a-z0-9_-]+' |
        sed 's/.*--/--/' | sort >"$dir/flags"
    [ -s "$dir/flags" ] || fail "$command --help=all lists no flags"
    sed -n 's/.*\\fB\\-\\-\([a-z0-9_\\-]*\)\\fR.*/--\1/p' "$page" | sed 's/\\-/-/g' |
        sort >"$dir/man_flags"
    cmp -s "$dir/flags" "$dir/man_flags" ||
        fail "$command: flags of help and man page differ: $(diff "$dir/flags" "$dir/man_flags")"
    while read -r flag; do
        grep -q -- "__fish_seen_subcommand_from $command' -l ${flag#--} " \
            "$dir/fish/lockstep.fish" || fail "fish: $command $flag"
    done <"$dir/flags"
done
for page in "$dir"/man1/*.1; do
    if has man; then
        reported=$(LC_ALL=C.UTF-8 man --warnings=w -l "$page" 2>&1 >/dev/null)
        [ -z "$reported" ] || fail "man --warnings: $reported"
    fi
    if has mandoc; then # the date comes from nowhere: builds are reproducible
        reported=$(mandoc -T lint -W warning "$page" | grep -v 'missing date')
        [ -z "$reported" ] || fail "mandoc: $reported"
    fi
done

# What bash offers for a line whose last word is being completed.
offers() {
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    _lockstep
    echo "${COMPREPLY[*]}"
}

# shellcheck disable=SC1091
. "$dir/bash/lockstep" || fail "bash cannot read its completion"
[ "$(offers lockstep hel)" = help ] || fail "bash: hel: $(offers lockstep hel)"
[ "$(offers lockstep cl)" = clean ] || fail "bash: cl: $(offers lockstep cl)"
[ "$(offers lockstep run --metrics)" = --metrics-port ] || fail "bash: --metrics"
case " $(offers lockstep top --) " in
*" --once --json "*) ;;
*) fail "bash: top --: $(offers lockstep top --)" ;;
esac
[ -z "$(offers lockstep run --grace '')" ] || fail "bash: a number has no completion"
cd "$dir" || exit 1
touch one_file.pt
mkdir one_folder
[ "$(offers lockstep run --hostfile one_fi)" = one_file.pt ] || fail "bash: a file"
[ "$(offers lockstep run --log-dir one_)" = one_folder ] || fail "bash: a folder"
[ "$(offers lockstep run one_fi)" = one_file.pt ] || fail "bash: the program"
complete -p lockstep >/dev/null || fail "bash: not registered"

if has fish; then
    fish -n fish/lockstep.fish || fail "fish: syntax"
    reported=$(fish -c "source $dir/fish/lockstep.fish; complete -C 'lockstep run --metrics'")
    case $reported in
    --metrics-port*) ;;
    *) fail "fish: $reported" ;;
    esac
fi
if has zsh; then
    zsh -n zsh/_lockstep || fail "zsh: syntax"
    # Every specification has the form -FLAG[MEANING]:NAME:ACTION.
    reported=$(grep "^        '-" zsh/_lockstep | grep -v -E \
        "^        '--?[A-Za-z0-9_-]+\[.*\](::?([^:]|\\\\:)*:[_a-z /-]*)?' \\\\\$" |
        head -n 3)
    [ -z "$reported" ] || fail "zsh: $reported"
fi
[ "$n_failed" -eq 0 ]
