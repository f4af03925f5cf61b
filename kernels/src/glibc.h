// The versions of exp and log that glibc has had from the start, in place of those of 2.29.
//
// They compute the same values, and a library that was compiled on a new system is loaded by an old one: torch's
// wheels run from glibc 2.28 on.
#pragma once

#include <stdint.h>  // defines __GLIBC__ where this is glibc

#if defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver exp,exp@GLIBC_2.2.5");
__asm__(".symver log,log@GLIBC_2.2.5");
#endif
