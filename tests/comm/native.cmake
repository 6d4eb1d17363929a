# SPDX-License-Identifier: Apache-2.0
# Tests of src/comm/native's shared-memory half; included by tests/comm/CMakeLists.txt.
set(native_test_libs ls_comm PkgConfig::CMOCKA m)
ls_test(test_comm_native_kernels unit SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/native_kernels.c ${CMAKE_CURRENT_LIST_DIR}/native_oracle.c
  LIBS ${native_test_libs})
ls_test(test_comm_native_local multiproc SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/native_local.c ${CMAKE_CURRENT_LIST_DIR}/native_ranks.c
  LIBS ${native_test_libs} TIMEOUT 120)
ls_test(test_comm_native_segment multiproc SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/native_segment.c ${CMAKE_CURRENT_LIST_DIR}/native_ranks.c
  LIBS ${native_test_libs} TIMEOUT 120)
ls_test(test_comm_native_team multiproc SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/native_team.c ${CMAKE_CURRENT_LIST_DIR}/native_team_rank.c
  ${CMAKE_CURRENT_LIST_DIR}/native_ranks.c ${CMAKE_CURRENT_LIST_DIR}/native_oracle.c
  LIBS ${native_test_libs} TIMEOUT 180)
include(${CMAKE_CURRENT_LIST_DIR}/native_mesh.cmake)
