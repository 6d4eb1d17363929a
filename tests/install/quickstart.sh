#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# quickstart.sh SOURCE-DIR: ./quickstart with stand-ins for apt-get, cmake and the built tool.
set -eu
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "$*:" >&2
    cat "$work/out" "$work/err" >&2
    exit 1
}

# stub PATH: a program of the lines on stdin
stub() {
    { echo '#!/bin/sh' && cat; } >"$1"
    chmod +x "$1"
}

mkdir -p "$work/tree/scripts" "$work/tree/build/bin" "$work/bin"
cp "$source/quickstart" "$work/tree/"
cp "$source/scripts/install-packages" "$source/scripts/build" "$work/tree/scripts/"
cd "$work/tree"
PATH=$work/bin:$PATH
TMPDIR=$work
export PATH TMPDIR
unset LOCKSTEP_CUDA # of the environment of ./check
run() { "$work/tree/quickstart" >"$work/out" 2>"$work/err"; }

# Without a network apt-get prints one warning an index, succeeds, and fails at the packages.
echo 'echo 0' | stub "$work/bin/id"
echo 'exit 1' | stub "$work/bin/dpkg-query"
echo 'echo Package: libjpeg-dev' | stub "$work/bin/apt-cache"
stub "$work/bin/apt-get" <<'SCRIPT'
name=deb.debian.org
if [ "$1" = update ]; then
    for index in 1 2 3; do
        echo "W: Failed to fetch http://$name/debian/dists/bookworm$index/InRelease" \
            " Temporary failure resolving '$name'" >&2
    done
    echo "W: Some index files failed to download. They have been ignored." >&2
    exit 0
fi
for package in "$@"; do
    echo "Err:1 http://$name/debian bookworm/main amd64 $package"
    echo "  Temporary failure resolving '$name'"
    echo "E: Failed to fetch http://$name/$package  Temporary failure resolving '$name'" >&2
done
echo "E: Unable to fetch some archives, maybe run apt-get" "update?" >&2
exit 100
SCRIPT
if run; then fail "quickstart succeeds without packages"; fi
[ "$(wc -l <"$work/err")" = 1 ] || fail "there is more than one line of errors"
grep -q "apt-get failed: .*Temporary failure resolving 'deb.debian.org'" "$work/err" ||
    fail "the cause is not named"

# A distribution that has one of two names, and a system without apt.
packages=$(scripts/install-packages --list run)
case $packages in
*libjpeg62*) fail "a name that the distribution has not is chosen" ;;
*libjpeg-dev*) ;;
*) fail "libjpeg-dev is not chosen" ;;
esac

# A package that only some distributions have: installed where there is one, not missed otherwise.
bench() { # bench DIR [--list], with the stand-ins of DIR
    path=$1:$PATH
    shift
    PATH=$path scripts/install-packages "$@" bench 2>&1 || true
}
if bench "$work/bin" --list | grep -q 'torch'; then fail "torch is chosen where there is none"; fi
mkdir "$work/torch"
echo 'echo Package: python3-torch' | stub "$work/torch/apt-cache"
echo 'case $* in *torch) exit 1 ;; esac; echo install ok installed' |
    stub "$work/torch/dpkg-query"
bench "$work/torch" --list | grep -qx 'python3-torch' || fail "torch is not chosen"
bench "$work/torch" | grep -q '^installing: .*python3-torch' || fail "torch is not installed"
echo 'exit 1' | stub "$work/torch/apt-cache"
[ -z "$(bench "$work/torch")" ] || fail "torch is missed where there is none"

mkdir "$work/other"
echo 'exit 1' | stub "$work/other/cc"
echo 'exit 0' | stub "$work/other/cmake"
if PATH=$work/other /bin/sh scripts/install-packages run 2>"$work/err"; then
    fail "install-packages succeeds without packages"
fi
for text in 'has no apt' Ninja oneDNN jansson libjpeg-turbo; do
    grep -q "$text" "$work/err" || fail "$text is not named"
done
if grep -q 'CMake\|C compiler' "$work/err"; then fail "what is installed is named as missing"; fi

# A build of 50 steps.
echo 'echo install ok installed' | stub "$work/bin/dpkg-query"
stub "$work/bin/cmake" <<'SCRIPT'
if [ "$1" != --build ]; then
    case $* in
    *LOCKSTEP_CUDA=OFF*) ;;
    *) echo "-- device cuda: with CUDA 13.0 and cuDNN 9.1, for 80-real;90-real" ;;
    esac
    exit 0
fi
step=0
while [ $step -lt 50 ]; do
    step=$((step + 1))
    echo "[$step/50] Building C object file$step.o"
    [ "$step" != "${FAIL_AT:-}" ] || { echo "file$step.c: error"; exit 1; }
done
SCRIPT
echo 'echo training "$@"' | stub "$work/tree/build/bin/lockstep"
run || fail "quickstart fails"
printf 'building: %3d %%\n' 0 20 40 60 80 100 >"$work/want"
grep building "$work/out" | cmp -s - "$work/want" || fail "the progress is not a line every 20 %"
grep -q "training run --nproc-per-node 2 .*mnist" "$work/out" || fail "nothing is trained"
grep -q "^device cuda: .* for 80-real;90-real: .*LOCKSTEP_CUDA=OFF in the environ" "$work/out" ||
    fail "the kernels for cards are compiled without a word"
LOCKSTEP_CUDA=OFF run || fail "quickstart without CUDA fails"
if grep -q cuda "$work/out"; then fail "LOCKSTEP_CUDA=OFF does not reach cmake"; fi
LOCKSTEP_CUDA=OFF script -qec "$work/tree/quickstart" /dev/null </dev/null >"$work/out"
tr '\r' '\n' <"$work/out" | grep -q '^building:  42 %$' || fail "a terminal shows no 42 %"
[ "$(grep -c building "$work/out")" = 1 ] || fail "the progress takes more than one line"
FAIL_AT=30
export FAIL_AT
if run; then fail "quickstart succeeds though the build fails"; fi
grep -q 'file30.c: error' "$work/err" || fail "the build's error is not shown"
echo "quickstart: all as expected"
