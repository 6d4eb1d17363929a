# SPDX-License-Identifier: Apache-2.0
# Tests of src/comm/native's message half; included by tests/comm/CMakeLists.txt.
set(here ${CMAKE_CURRENT_LIST_DIR})
set(mesh_test_libs test_harness ls_comm PkgConfig::CMOCKA m)
set(mesh_ranks ${here}/native_mesh_ranks.c ${here}/native_oracle.c)
ls_test(test_comm_native_plan "unit;no-tsan"
  SOURCES ${here}/native_mesh_plan.c ${here}/native_oracle.c LIBS ${mesh_test_libs} TIMEOUT 120)
foreach(name link striped)
  ls_test(test_comm_native_${name} "unit;no-tsan"
    SOURCES ${here}/native_mesh_${name}.c ${here}/native_mesh_ends.c LIBS ${mesh_test_libs})
endforeach()
foreach(name streams many)
  ls_test(test_comm_native_${name} multiproc
    SOURCES ${here}/native_mesh_${name}.c ${mesh_ranks} LIBS ${mesh_test_libs} TIMEOUT 240)
endforeach()
foreach(name mesh mesh_fault)
  ls_test(test_comm_native_${name} multiproc
    SOURCES ${here}/native_${name}.c ${mesh_ranks} LIBS ${mesh_test_libs} TIMEOUT 240)
endforeach()
target_link_options(test_comm_native_mesh_fault PRIVATE -Wl,--wrap=sched_yield -Wl,--wrap=team_read)
# Takes 4.3 GB.
add_test(NAME test_comm_native_huge COMMAND test_comm_native_many huge)
set_tests_properties(test_comm_native_huge PROPERTIES LABELS "multiproc;slow" TIMEOUT 600)
# The results of system calls are changed: short, late, interrupted, reset.
ls_test(test_comm_native_shim fault
  SOURCES ${here}/native_mesh_shim.c ${mesh_ranks} LIBS ${mesh_test_libs} TIMEOUT 240)
foreach(call sendmsg recvmsg send recv poll)
  target_link_options(test_comm_native_shim PRIVATE -Wl,--wrap=${call})
endforeach()
# A reader is stopped in the middle of a copy from another rank's memory.
ls_test(test_comm_native_gave_up multiproc
  SOURCES ${here}/native_mesh_gave_up.c ${mesh_ranks} LIBS ${mesh_test_libs} TIMEOUT 240)
foreach(call copy_string memcpy memmove reduce_tree)
  target_link_options(test_comm_native_gave_up PRIVATE -Wl,--wrap=${call})
endforeach()
# Some of these with several connections a pair.
foreach(row "mesh short" "mesh_fault *named* *left* *memory*" "shim")
  separate_arguments(row)
  list(POP_FRONT row name)
  add_test(NAME test_comm_native_${name}_striped COMMAND test_comm_native_${name} ${row})
  set_tests_properties(test_comm_native_${name}_striped PROPERTIES LABELS multiproc TIMEOUT 240
                       ENVIRONMENT LS_TEST_CONNECTIONS=3)
endforeach()
