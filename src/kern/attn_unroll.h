/* SPDX-License-Identifier: MIT */
/* attn_unroll.h: INLINE and EACH, which turn one body into instances with constant sizes whose
 * accumulators stay in registers. Not under sanitizers: every instruction then brings its checks,
 * and compiling hundreds of instrumented unrolled instances takes minutes. */
#ifndef KVS_KERN_ATTN_UNROLL_H
#define KVS_KERN_ATTN_UNROLL_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INSTRUMENTED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer) ||                         \
    __has_feature(thread_sanitizer)
#define INSTRUMENTED
#endif
#endif

#if defined(INSTRUMENTED)
#define INLINE static inline
#define UNROLL
#elif defined(__clang__)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 64")
#endif
#define EACH(i, n) UNROLL for (size_t i = 0; i < (n); i++)

#endif
