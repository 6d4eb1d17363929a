# SPDX-License-Identifier: Apache-2.0
# Tests of src/comm/native's shared-memory half; included by tests/comm/CMakeLists.txt.
set(native_test_libs ls_comm PkgConfig::CMOCKA m)
ls_test(test_comm_native_kernels unit SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/native_kernels.c ${CMAKE_CURRENT_LIST_DIR}/native_oracle.c
  LIBS ${native_test_libs})
foreach(name algorithms copy offer_way)
  ls_test(test_comm_native_${name} unit SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/native_${name}.c LIBS ${native_test_libs})
endforeach()
ls_test(test_comm_native_local multiproc SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/native_local.c ${CMAKE_CURRENT_LIST_DIR}/native_ranks.c
  LIBS ${native_test_libs} TIMEOUT 120)
ls_test(test_comm_native_segment multiproc SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/native_segment.c ${CMAKE_CURRENT_LIST_DIR}/native_ranks.c
  LIBS ${native_test_libs} TIMEOUT 120)
ls_test(test_comm_native_team multiproc SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/native_team.c ${CMAKE_CURRENT_LIST_DIR}/native_team_rank.c
  ${CMAKE_CURRENT_LIST_DIR}/native_ranks.c ${CMAKE_CURRENT_LIST_DIR}/native_oracle.c
  LIBS ${native_test_libs} TIMEOUT 300)
ls_test(test_comm_native_late multiproc SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/native_late.c ${CMAKE_CURRENT_LIST_DIR}/native_team_rank.c
  ${CMAKE_CURRENT_LIST_DIR}/native_ranks.c
  LIBS ${native_test_libs} TIMEOUT 300)

# The team's sources with the compiler's calls at each access, which native_lines.c counts.
if(NOT LOCKSTEP_SANITIZE AND NOT LOCKSTEP_FUZZ)
  foreach(name levels team team_direct team_gate team_inline team_levels team_open team_rules
      team_select team_shared team_staged)
    list(APPEND counted_sources ${PROJECT_SOURCE_DIR}/src/comm/backends/native/team/${name}.c)
  endforeach()
  add_library(test_native_counted OBJECT ${counted_sources})
  target_link_libraries(test_native_counted PRIVATE ls_comm)
  target_compile_options(test_native_counted PRIVATE -fsanitize=thread
    -Dmemcpy=lines_memcpy -Dcopy_shared=lines_copy_shared -Dreduce_tree=lines_reduce_tree)
  ls_test(test_comm_native_levels unit SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/native_levels.c ${CMAKE_CURRENT_LIST_DIR}/native_lines.c
    $<TARGET_OBJECTS:test_native_counted> LIBS test_root_folder ${native_test_libs} TIMEOUT 120)
endif()
include(${CMAKE_CURRENT_LIST_DIR}/native_mesh.cmake)
