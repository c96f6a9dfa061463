// Finds the best instruction set level that this machine can run.
#pragma once
#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

// Asks the system for AMX tiles. They add 8 KiB of state to every thread. Linux grants them to a process that
// asks; other systems do not have this call.
inline bool amx_granted() {
#if defined(__x86_64__) && defined(__GNUC__) && defined(__linux__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    constexpr unsigned bf16 = 1u << 22, tile = 1u << 24;
    if ((d & bf16) == 0 || (d & tile) == 0) return false;
    constexpr long request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request, tile_data) == 0;
#else
    return false;
#endif
}

// Conversion of f16. All CPUs with AVX2 have it. `__builtin_cpu_supports` of older compilers does not know it.
inline bool converts_halves() {
#if defined(__x86_64__) && defined(__GNUC__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & (1u << 29));
#else
    return false;
#endif
}

// The level: 4 AMX with BF16, 3 AVX512 with BF16, 2 AVX512, 1 AVX2, 0 any machine. On a machine with AMX, also
// asks the system for permission to use it.
inline int machine_level() {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        if (!__builtin_cpu_supports("avx512bf16")) return 2;
        return amx_granted() ? 4 : 3;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && converts_halves()) return 1;
#endif
    return 0;
}

}  // namespace
