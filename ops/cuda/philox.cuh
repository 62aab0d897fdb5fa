// Philox4x32-10 (ops/streams.py): the draws of a stream (key, sequence) by their numbers.
#pragma once

struct Four { unsigned word[4]; };

// Multiply a and b in one instruction: for a constant above 2^31 the compiler would use two.
__device__ __forceinline__ unsigned long long wide_product(unsigned a, unsigned b) {
#ifdef EMULATED
    return static_cast<unsigned long long>(a) * b;
#else
    unsigned long long product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
#endif
}

// Return draws 4 `number` ... 4 `number` + 3.
__device__ __forceinline__ Four philox(unsigned long long key, unsigned long long sequence, unsigned long long number) {
    unsigned c0 = static_cast<unsigned>(number), c1 = static_cast<unsigned>(number >> 32);
    unsigned c2 = static_cast<unsigned>(sequence), c3 = static_cast<unsigned>(sequence >> 32);
    unsigned k0 = static_cast<unsigned>(key), k1 = static_cast<unsigned>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const unsigned long long p0 = wide_product(c0, 0xD2511F53u), p1 = wide_product(c2, 0xCD9E8D57u);
        c0 = static_cast<unsigned>(p1 >> 32) ^ c1 ^ k0;
        c2 = static_cast<unsigned>(p0 >> 32) ^ c3 ^ k1;
        c1 = static_cast<unsigned>(p1);
        c3 = static_cast<unsigned>(p0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// the draws of one element, in order, from draw `first` on of a stream that begins at word `phase` of `start`
struct Draws {
    unsigned long long key, sequence, low, at, known;
    Four four;
    __device__ Draws(unsigned long long k, unsigned long long s, unsigned long long start, int phase,
                     unsigned long long first)
        : key(k), sequence(s), low(start), at(first + phase), known((first + phase) >> 2) {
        four = block();
    }
    __device__ Four block() const {  // an overflow is carried to the high half
        const unsigned long long number = low + known;
        return philox(key, sequence + (number < low), number);
    }
    __device__ unsigned next() {
        if (at >> 2 != known) {
            known = at >> 2;
            four = block();
        }
        const unsigned i = static_cast<unsigned>(at++) & 3;  // an array that is indexed at run time would be in memory
        return i & 2 ? (i & 1 ? four.word[3] : four.word[2]) : (i & 1 ? four.word[1] : four.word[0]);
    }
    __device__ void pass(int draws) { at += draws; }
};
