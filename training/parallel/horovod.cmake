# For the build of Horovod 0.28.1 (`make horovod`): it asks for C++14 where torch's headers need C++17, and its gloo for
# CMake 2.8, which CMake 4 refuses. Without debugging information its objects are small and quick to build; CXXFLAGS may
# choose another optimisation.
# Read as CMake's toolchain file, and again at each project(), which sets some of it back.
set(CMAKE_PROJECT_INCLUDE ${CMAKE_CURRENT_LIST_FILE})
set(CMAKE_POLICY_VERSION_MINIMUM 3.5)
set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "-std=c++17")
if("$ENV{CXXFLAGS}" MATCHES "-O")
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-DNDEBUG")
else()
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG")
endif()
# Compiled together, many files read torch's headers once. Files of gloo clash so; with NCCL it was not tried.
if("$ENV{HOROVOD_GPU_OPERATIONS}" STREQUAL "" AND NOT PROJECT_NAME STREQUAL "gloo")
  set(CMAKE_UNITY_BUILD ON)
else()
  set(CMAKE_UNITY_BUILD OFF)
endif()
