# SPDX-License-Identifier: Apache-2.0
# Compiler and linker flags of all C code, with reasons where a flag needs one.
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# No fast-math and no contraction: every rank must compute the same bits.
set(CMAKE_C_FLAGS_RELEASE "-O2 -g")
# for sanitizers: with their checks -O2 takes twice as long to compile
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1 -g1")
foreach(flag IN ITEMS -fno-math-errno -fno-trapping-math -ffp-contract=off)
  add_compile_options($<$<COMPILE_LANGUAGE:C>:${flag}>)
endforeach()
add_compile_definitions(_GNU_SOURCE)

set(warnings
    -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wcast-qual
    -Wcast-align -Wwrite-strings -Wformat=2 -Wundef -Wvla -Wconversion -Wno-sign-conversion
    -Wdouble-promotion -Wnull-dereference)
if(NOT LOCKSTEP_SANITIZE AND NOT LOCKSTEP_FUZZ)
  list(APPEND warnings -Wframe-larger-than=16384) # sanitizers pad every frame
endif()
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  list(APPEND warnings -Wlogical-op -Wduplicated-cond -Wduplicated-branches -Wjump-misses-init)
endif()
foreach(flag IN LISTS warnings)
  add_compile_options($<$<COMPILE_LANGUAGE:C>:${flag}>)
endforeach()
if(LOCKSTEP_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()

if(LOCKSTEP_SANITIZE)
  add_compile_options(-fsanitize=${LOCKSTEP_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${LOCKSTEP_SANITIZE})
endif()
if(LOCKSTEP_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  add_compile_options(-Wno-pass-failed) # loops that -O1 does not vectorise
  add_link_options(-fsanitize=address,undefined)
endif()

# Sets and copies structures of hundreds of bytes by memset() and memcpy(). gcc's choice for a
# processor that it does not know, rep stos, takes longer to start than such a block does.
include(CheckCCompilerFlag)
set(ls_block_flags -mmemset-strategy=libcall:-1:noalign -mmemcpy-strategy=libcall:-1:noalign)
string(REPLACE ";" " " ls_block_text "${ls_block_flags}")
check_c_compiler_flag("${ls_block_text}" LOCKSTEP_HAS_BLOCK_FLAGS)
function(ls_blocks_by_call target)
  if(LOCKSTEP_HAS_BLOCK_FLAGS)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:${ls_block_flags}>)
  endif()
endfunction()
