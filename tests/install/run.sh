#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh SOURCE-DIR BUILD-DIR CC: configures as README says, without cmocka; installs the build,
# moves the installed tree, and compiles a program against it, with pkg-config and with CMake.
set -eu
source=$1
build=$2
cc=$3
here=$(cd "$(dirname "$0")" && pwd)
if grep -q '^LOCKSTEP_SANITIZE:STRING=..*' "$build/CMakeCache.txt"; then
    echo "skipped: a sanitized library needs a sanitized program"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "$*" >&2
    exit 1
}

mkdir "$work/tools"
cat >"$work/tools/pkg-config" <<'SCRIPT'
#!/bin/sh
case "$*" in *cmocka*) exit 1 ;; esac
exec /usr/bin/pkg-config "$@"
SCRIPT
chmod +x "$work/tools/pkg-config"
PKG_CONFIG="$work/tools/pkg-config" cmake -S "$source" --preset release -B "$work/configured" \
    -DLOCKSTEP_INSTALL_TORCHRUN=ON -DLOCKSTEP_INSTALL_NCCL_TESTS=ON \
    -DCMAKE_C_COMPILER="$cc" >"$work/log" 2>&1 || fail "the preset fails: $(cat "$work/log")"
for name in torchrun all_reduce_perf hypercube_perf; do
    grep -q "/$name\"" "$work/configured/src/cli/cmake_install.cmake" ||
        fail "$name is not installed on request"
done

cmake --install "$build" --prefix "$work/first" >"$work/install.log"
tail -n 1 "$work/install.log" | grep -q "ldconfig.*-Wl,-rpath,$work/first/" ||
    fail "the install does not name ldconfig"
mv "$work/first" "$work/prefix"

# Each file belongs to a component, and each component has its own files only.
components="tool programs library development onednn gloo openmpi mpich cuda"
for component in $components; do
    cmake --install "$build" --prefix "$work/parts" --component "$component" >/dev/null
    (cd "$work/parts" 2>/dev/null && find . ! -type d) | sort >"$work/list-$component"
    rm -rf "$work/parts"
done
(cd "$work/prefix" && find . ! -type d) | sort >"$work/all"
cat "$work"/list-* | sort | diff "$work/all" - || fail "the components are not the whole"
grep -q 'include/\|\.pc$' "$work/list-tool" "$work/list-library" "$work/list-programs" &&
    fail "files for compiling are outside of development"
pc=$(find "$work/prefix" -name lockstep.pc)
lib=$(dirname "$(dirname "$pc")")
share=$work/prefix/share
for file in man/man1/lockstep.1 man/man1/lockstep-run.1 zsh/site-functions/_lockstep \
    bash-completion/completions/lockstep fish/vendor_completions.d/lockstep.fish; do
    [ -s "$share/$file" ] || fail "share/$file is not installed"
done
unset LOCKSTEP_MODULE_DIR RANK WORLD_SIZE LOCAL_RANK

PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046 # flags are words
"$cc" -o "$work/by-pkg-config" "$here/outside.c" $(pkg-config --cflags --libs lockstep)
test "$(LD_LIBRARY_PATH="$lib" "$work/by-pkg-config")" = "lockstep 0.1.0: 1.5"
readelf -d "$work/by-pkg-config" | grep -q 'NEEDED.*\[liblockstep.so.0.1\]' ||
    fail "the soname is not of this minor version"

mkdir "$work/outside"
cp "$here/outside.c" "$work/outside/"
cat >"$work/outside/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.16)
project(outside C)
find_package(lockstep 0.2 QUIET)
if(lockstep_FOUND)
  message(FATAL_ERROR "version 0.1 passes for 0.2")
endif()
find_package(lockstep 0.1 REQUIRED)
add_executable(by-cmake outside.c)
target_link_libraries(by-cmake lockstep::lockstep)
CMAKE
cmake -G Ninja -S "$work/outside" -B "$work/outside/build" \
    -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_C_COMPILER="$cc" >/dev/null
cmake --build "$work/outside/build" >/dev/null
test "$("$work/outside/build/by-cmake")" = "lockstep 0.1.0: 1.5"

# The moved library and tool find the modules, and the tool its static agent.
tool=$work/prefix/bin/lockstep
has_module() { [ -e "$lib/lockstep-0.1/liblockstep_$1.so" ]; }
expect() { # expect TEXT COMMAND: succeeds and prints TEXT
    text=$1
    shift
    "$@" </dev/null >"$work/log" 2>&1 || fail "$*: $(cat "$work/log")"
    grep -q "$text" "$work/log" || fail "$* does not print $text: $(cat "$work/log")"
}
if has_module onednn; then
    LOCKSTEP_DEVICE=onednn expect 'epoch 1' "$tool" run -n 2 own_data --epochs 1
fi
if has_module gloo; then
    expect 'Out of bounds values : 0' "$tool" bench all_reduce -g 2 -b 8 -e 8 --backend gloo
fi
if [ -e "$work/prefix/libexec/lockstep/lockstep-agent" ]; then
    cat >"$work/tools/ssh" <<'SCRIPT'
#!/bin/sh
for word; do command=$word; done
exec sh -c "$command"
SCRIPT
    chmod +x "$work/tools/ssh"
    expect 'rank 1| here' "$tool" run -H 127.0.0.2:2 --ssh "$work/tools/ssh" echo here
fi

# Nothing in PATH but the tool; it finds the installed programs.
commands=$(ls "$work/prefix/bin")
test "$commands" = lockstep || fail "bin/ has more than lockstep: $commands"
for program in mnist own_data own_sequence message_passing elastic_ddp resnet imagenet gpt; do
    "$work/prefix/bin/lockstep" run "$program" --help </dev/null >"$work/log" 2>&1 ||
        fail "$program: $(cat "$work/log")"
done

# The command that converts weights of PyTorch names an installed file.
"$work/prefix/libexec/lockstep/imagenet" --dummy --pretrained >"$work/log" 2>&1 || true
grep -q "python3 '$lib/lockstep-0.1/convert.py' 'torchvision:resnet18'" "$work/log" ||
    fail "no command that converts weights: $(cat "$work/log")"
[ -s "$lib/lockstep-0.1/convert.py" ] || fail "the converter of weights is not installed"
