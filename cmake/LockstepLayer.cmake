# SPDX-License-Identifier: Apache-2.0
# ls_layer(NAME SOURCES a.c ... [USES layer ...] [LIBS target ...])
# One static archive per layer; the shared library and the tool consist of them.
function(ls_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES;LIBS" ${ARGN})
  add_library(ls_${name} STATIC ${ARG_SOURCES})
  target_include_directories(ls_${name}
    PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  set(used)
  foreach(layer IN LISTS ARG_USES)
    list(APPEND used ls_${layer})
  endforeach()
  target_link_libraries(ls_${name} PUBLIC ${used} PRIVATE ${ARG_LIBS})
endfunction()

# The environment of tests on the simulated card; of suites that run there a second time.
set(sim_card "GPU_HOST_DEVICES=8;GPU_HOST_DELAY_US=50;GPU_HOST_SEED=1")
set(on_sim "LS_TEST_DEVICE=cudahost;${sim_card}")

# ls_test(NAME LABEL SOURCES a.c ... [LIBS target ...] [TIMEOUT seconds] [ARGS ...] [ON_SIM])
# One test binary, registered with ctest under its label; exit 77 = skipped. Long tests start first.
# ON_SIM: a second time as NAME_on_sim, on the simulated card of tests/devices/.
function(ls_test name label)
  cmake_parse_arguments(ARG "ON_SIM" "TIMEOUT" "SOURCES;LIBS;ARGS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  math(EXPR limit "3 * ${ARG_TIMEOUT}") # sanitized, and on a busy machine
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${ARG_LIBS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
  set_tests_properties(${name} PROPERTIES
    LABELS "${label}" TIMEOUT ${limit} COST ${ARG_TIMEOUT} SKIP_RETURN_CODE 77)
  if(ARG_ON_SIM)
    add_dependencies(${name} lockstep_cudahost)
    add_test(NAME ${name}_on_sim COMMAND ${name} ${ARG_ARGS})
    set_tests_properties(${name}_on_sim PROPERTIES
      LABELS "${label}" TIMEOUT ${limit} COST ${ARG_TIMEOUT} SKIP_RETURN_CODE 77
      ENVIRONMENT "${on_sim}")
  endif()
endfunction()

# Tests of this folder run as an ordinary user in ./check, except its unit tests (label `user`).
# ROOT: those of which some cases need root, and which run as both.
function(ls_run_as_user)
  cmake_parse_arguments(ARG "" "" "ROOT" ${ARGN})
  get_property(tests DIRECTORY PROPERTY TESTS)
  foreach(test IN LISTS tests)
    get_property(labels TEST ${test} PROPERTY LABELS)
    if("unit" IN_LIST labels)
      continue()
    endif()
    if(test IN_LIST ARG_ROOT)
      set_property(TEST ${test} APPEND PROPERTY LABELS user-and-root)
    else()
      set_property(TEST ${test} APPEND PROPERTY LABELS user)
    endif()
  endforeach()
endfunction()
