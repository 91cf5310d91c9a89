# For the build of Horovod 0.28.1 (`make horovod`), which asks for C++14: torch's headers need C++17. Without debugging
# information its objects are small and quick to build. Read as CMake's toolchain file, and again at each project().
set(CMAKE_PROJECT_INCLUDE ${CMAKE_CURRENT_LIST_FILE})
set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "-std=c++17")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG")
