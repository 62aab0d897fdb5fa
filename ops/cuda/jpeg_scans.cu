// Scans of progressive images (T.81, annex G). A warp decodes one scan from its first bit to its last, and thousands of
// warps run concurrently. All scans of an image run at once: a scan that refines others follows them at a distance. A
// scan only ever waits for scans that have started before it.
//
// All lanes of a warp decode the same codes, in the same state. Only refining scans use that a block has 64
// coefficients and a warp 32 lanes: a lane holds coefficients i and i + 32 of a block, which share a word. The lane
// knows how many zeros precede them, so that together the lanes find the position to which a run of zeros leads, and
// each lane finds the bits that correct its own coefficients. So only codes and positions are read one after the other.
#include "jpeg_stream.cu"

#ifndef CODE_BITS
// bits that index a table for AC; tables for DC are stored in the same room, and have two bits less
#define CODE_BITS 10
#endif
#ifndef SCAN_WARPS
#define SCAN_WARPS 24  // minimum warps per multiprocessor
#endif
#define AHEAD 2        // blocks that a refining scan fetches before it needs them
#define TOLD 64        // MCUs after which a scan publishes its progress
#define ALL 0x7fffffff

// Return the index in memory of a coefficient within its block, from its zig-zag index.
DEVICE int kept_at(int k) { return (k & 31) << 1 | k >> 5; }

#define NO_RUN 64               // longer than any run
#define PLACES (63 + NO_RUN + 1)
#define NOWHERE (3 * 64)        // a position with more zeros before it than a run can have

struct ScanCodes {
    u32 entry[1 << CODE_BITS];  // length, run << 8, size << 16; 0: a longer code, or none
    u32 limit[4][17];           // by length: the first 16-bit pattern after its codes
    i32 delta[4][17];           // symbol index less code
    i32 place[PLACES];          // the positions of the zeros of a block that is refined
};

// Entry for a bit pattern that is not a code: no scan has such a run, and no refining scan such a size.
#define NO_CODE (16 | NO_RUN << 8 | 2 << 16)
#define ENDS_BLOCKS(entry) ((entry) < 0xf00)  // entries without a size and with less than the longest run

DEVICE u32 scan_entry(u32 symbol, u32 length) { return length | (symbol >> 4) << 8 | (symbol & 15) << 16; }
DEVICE int run_of(u32 entry) { return (int)__byte_perm(entry, 0, 0x4441); }

// Build table `nth` from the Huffman table at `offset` of the file (T.81, C.2); its entries begin at `first`. Return
// false if the table is not a prefix code.
DEVICE bool read_codes(ScanCodes &codes, const Batch *batch, const Image &image, int offset, int nth, int first, int bits,
                       bool is_dc) {
    const int lane = threadIdx.x;
    const u8 *counts = batch->raw + image.raw + offset, *symbols = counts + 16;
    u32 mine = lane < 16 ? counts[lane] : 0, code = 0, behind = warp_sum(mine);
    u32 total = __shfl_sync(~0u, behind, 31);
    bool bad = total > 256;
    for (int length = 1; length <= 16; length++) {
        u32 count = __shfl_sync(~0u, mine, length - 1), index = __shfl_sync(~0u, behind, length - 1) - count;
        if (lane == 0) {
            codes.delta[nth][length] = (int)index - (int)code;
            codes.limit[nth][length] = (code + count) << (16 - length);
        }
        code += count;
        bad |= count && code >= 1u << length;  // a code may not consist of ones only
        code <<= 1;
    }
    for (u32 i = lane; is_dc && !bad && i < total; i += 32) bad |= symbols[i] > 15;
    __syncwarp();
    if (__any_sync(~0u, bad)) return false;
    for (u32 i = lane; i < 1u << bits; i += 32) {
        u32 pattern = i << (16 - bits), entry = 0;
        for (int length = 1; length <= bits && !entry; length++)
            if (pattern < codes.limit[nth][length])
                entry = scan_entry(symbols[codes.delta[nth][length] + (int)(pattern >> (16 - length))], length);
        codes.entry[first + i] = entry;
    }
    __syncwarp();
    return true;
}

// Return the entry of a code that has more bits than the index of the table.
DEVICE u32 longer_code(const ScanCodes &codes, const u8 *symbols, int nth, u32 bits, int entry_bits) {
    u32 pattern = bits >> 16;
#pragma unroll 1
    for (int length = entry_bits + 1; length <= 16; length++)
        if (pattern < codes.limit[nth][length])
            return scan_entry(symbols[codes.delta[nth][length] + (int)(pattern >> (16 - length))], length);
    return NO_CODE;
}

// The input of a warp: the bits of two words, and a third word that is being loaded. It may read beyond the end of its
// stream, by at most the bits of one block, before the caller checks its position.
//
// No loop loads words here, because it would wait for each of them.
struct ScanReader {
    const u32 *next;
    u32 w0, w1, w2;
    int at, position;  // bit position of w0; offset of the next bit from there

    // ``bit`` is a multiple of 8.
    DEVICE void seek(const Stream &stream, int bit) {
        next = stream.words + (bit >> 5);
        w0 = next[0], w1 = next[1], w2 = next[2];
        next += 3;
        at = bit & ~31, position = bit & 31;
    }
    DEVICE int bit() const { return at + position; }
    DEVICE u32 peek() const { return __funnelshift_l(w1, w0, position); }  // position < 32
    DEVICE void next_word() {
        position -= 32, at += 32;
        w0 = w1, w1 = w2, w2 = *next++;
        prefetch(next + 8);  // one request fetches 32 bytes
    }
    // Shift the words by `position` bits.
    DEVICE void advance() {
        if (position < 32) return;
        if (position < 64) {
            next_word();
        } else {
            next += position >> 5;
            w0 = next[-3], w1 = next[-2], w2 = next[-1];
            at += position & ~31, position &= 31;
        }
    }
    DEVICE void skip(int n) {  // n <= 32
        position += n;
        if (position >= 32) next_word();
    }
};

// Publish that the coefficients of the first ``mcus`` MCUs of a scan are stored. Warps that read this number also see
// the coefficients.
DEVICE void tell(const Batch *batch, const Scan &scan, int mcus) {
    __syncwarp();
    if (threadIdx.x == 0) store_released(batch->progress + scan.image, mcus);
}

// Wait until all scans that this one refines have published more than ``mcus`` MCUs; return the smallest number. The
// coefficients of these may then be loaded, but not through the first-level cache, which does not see stores of other
// multiprocessors. An acquire of the memory model would empty that cache, which holds streams.
DEVICE int wait_for_more(const Batch *batch, const Scan &scan, int mcus) {
    const volatile i32 *before = (const volatile i32 *)batch->progress + scan.image - 1 - (int)threadIdx.x;
    for (;;) {
        int ready = ALL;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (scan.after[i] >> threadIdx.x & 1) ready = min(ready, (int)before[-32 * i]);
#pragma unroll
        for (int step = 16; step > 0; step >>= 1) ready = min(ready, (int)__shfl_xor_sync(~0u, ready, step));
        BARRIER_TO_COMPILER();
        if (ready > mcus) return ready;
        LONG_PAUSE();
    }
}

// Iterates over the restart intervals of a scan.
struct Turn {
    int nth, left;   // left: MCUs still to decode
    int begin, end;  // bits

    DEVICE bool open(const Scan &scan, const Stream &stream) {
        int done = nth * scan.restart;
        if (done >= scan.mcus || (nth && !scan.restart)) return false;
        left = scan.restart ? min(scan.restart, scan.mcus - done) : scan.mcus;
        begin = nth ? (int)stream.ends[nth - 1] * 8 : 0;
        end = nth < stream.end_count ? (int)stream.ends[nth] * 8 : (int)stream.bits;
        return true;
    }
    // Return the status bits of an interval that was read up to `bit`. Less than a byte may remain.
    DEVICE u32 close(int bit, const Stream &stream) {
        u32 more = nth < stream.end_count ? BAD_RESTART : EXTRANEOUS;
        nth++;
        return bit > end ? MISSING : end - bit >= 8 ? more : 0;
    }
};

DEVICE int extended(u32 bits, u32 size) {  // T.81, F.2.2.1: EXTEND, of the first `size` bits, at least 1
    u32 value = bits >> (32 - size);
    return (int)bits < 0 ? (int)value : (int)value - (1 << size) + 1;
}

DEVICE i16 *block_of(const Batch *batch, const ScanPart &part, int x, int y) {
    return batch->coefficients + part.coefficients + ((i64)y * part.stride + x) * 64;
}

DEVICE u32 first_dc(const Batch *batch, const Scan &scan, const Image &image, ScanCodes &codes, const Stream &stream) {
    const int bits = CODE_BITS - 2;
    for (int p = 0; p < scan.count; p++)
        if (!read_codes(codes, batch, image, scan.part[p].table, p, p << bits, bits, true)) return BAD_TABLE;
    ScanReader reader;
    u32 flags = 0;
    for (Turn turn = {0, 0, 0, 0}; turn.open(scan, stream);) {
        int before[4] = {0, 0, 0, 0}, y = turn.nth * scan.restart / scan.mcus_x, x = turn.nth * scan.restart - y * scan.mcus_x;
        reader.seek(stream, turn.begin);
        for (; turn.left > 0; turn.left--) {
#pragma unroll
            for (int p = 0; p < 4; p++) {
                if (p >= scan.count) continue;
                const ScanPart &part = scan.part[p];
                const u8 *symbols = batch->raw + image.raw + part.table + 16;
                for (int i = 0; i < part.v; i++) {
                    i16 *to = block_of(batch, part, x * part.h, y * part.v + i);
                    for (int j = 0; j < part.h; j++, to += 64) {
                        u32 bits_here = reader.peek(), entry = codes.entry[(p << bits) + (bits_here >> (32 - bits))];
                        if (entry == 0) entry = longer_code(codes, symbols, p, bits_here, bits);
                        if (run_of(entry)) flags |= BAD_CODE;
                        u32 length = entry & 255, size = entry >> 16;
                        if (size) before[p] += extended(bits_here << length, size);
                        reader.skip(length + size);
                        // all lanes store the same value: a branch takes longer
                        *to = (i16)((u32)before[p] << scan.low);
                    }
                }
                // libjpeg rejects such sums later
                if (before[p] >= 1 << 24 || before[p] <= -(1 << 24)) flags |= BAD_CODE;
            }
            if (++x == scan.mcus_x) x = 0, y++;
            if (flags || reader.bit() > turn.end) break;
        }
        flags |= turn.close(reader.bit(), stream);
        if (flags) break;
    }
    return flags;
}

// Decode a scan that refines DC: one bit per block, in the order of the scan. Each lane processes every 32nd block.
DEVICE u32 more_dc(const Batch *batch, const Scan &scan, const Stream &stream) {
    int in_mcu = 0;
    for (int p = 0; p < scan.count; p++) in_mcu += scan.part[p].h * scan.part[p].v;
    u32 flags = 0;
    wait_for_more(batch, scan, ALL - 1);
    for (Turn turn = {0, 0, 0, 0}; turn.open(scan, stream);) {
        int blocks = turn.left * in_mcu, first = turn.nth * scan.restart;
        if (turn.begin + blocks > turn.end) return MISSING;
        for (int i = threadIdx.x; i < blocks; i += 32) {
            int bit = turn.begin + i;
            if (!(stream.words[bit >> 5] >> (31 - (bit & 31)) & 1)) continue;
            int mcu = i / in_mcu, nth = i - mcu * in_mcu, p = 0;
            mcu += first;
            while (nth >= scan.part[p].h * scan.part[p].v) nth -= scan.part[p].h * scan.part[p].v, p++;
            const ScanPart &part = scan.part[p];
            int y = mcu / scan.mcus_x, x = mcu - y * scan.mcus_x, row = nth / part.h;
            i16 *to = block_of(batch, part, x * part.h + nth - row * part.h, y * part.v + row);
            *to = (i16)(load_past_cache((const u16 *)to) | 1 << scan.low);
        }
        flags |= turn.close(turn.begin + blocks, stream);
        if (flags) break;
    }
    return flags;
}

// Position in the grid of blocks of a scan of one component, as words from the first block's coefficients.
struct Walk {
    int x, word;

    DEVICE void move(int n, int per_row, int row_words) {
        x += n, word += 32 * n;
        if (x >= per_row) {
            int rows = n == 1 ? 1 : x / per_row;
            x -= rows * per_row;
            word += rows * (row_words - 32 * per_row);
        }
    }
};

DEVICE u32 first_ac(const Batch *batch, const Scan &scan, const Image &image, ScanCodes &codes, const Stream &stream) {
    if (!read_codes(codes, batch, image, scan.part[0].table, 0, 0, CODE_BITS, false)) return BAD_TABLE;
    const u8 *symbols = batch->raw + image.raw + scan.part[0].table + 16;
    const int first = (int)arrived(scan.first), last = (int)arrived(scan.last), low = (int)arrived(scan.low);
    const int per_row = (int)arrived(scan.mcus_x), row_words = (int)arrived(32 * scan.part[0].stride);
    const SharedWords entries(codes.entry);
    i16 *to = kept(batch->coefficients + scan.part[0].coefficients);
    ScanReader reader;
    Walk walk = {0, 0};
    u32 flags = 0;
    int passed = 0, to_tell = TOLD;  // blocks
    for (Turn turn = {0, 0, 0, 0}; turn.open(scan, stream);) {
        reader.seek(stream, turn.begin);
        while (turn.left > 0) {
            int k = first, run_of_blocks = 1;
#pragma unroll 1
            do {
                u32 bits = reader.peek(), entry = entries[bits >> (32 - CODE_BITS)];
                if (ENDS_BLOCKS(entry)) {  // ends this block, and possibly the next ones; or 0
                    if (entry == 0) entry = longer_code(codes, symbols, 0, bits, CODE_BITS);
                    if (ENDS_BLOCKS(entry)) {
                        int length = entry & 255, run = run_of(entry);
                        run_of_blocks = (1 << run) + (int)shift_right(bits << length, 32 - run);
                        reader.skip(length + run);
                        break;
                    }
                }
                u32 length = entry & 255, size = entry >> 16;
                bits <<= length;
                k += run_of(entry);
                reader.skip(length + size);
                // An entry without a size is a run of zeros: the coefficient after it keeps its value.
                i16 value = (i16)((u32)extended(bits, max(size, 1u)) << low);
                if (k > last) flags |= BAD_CODE;
                // all lanes store the same value, as above
                if (k <= last && size) to[2 * walk.word + kept_at(k)] = value;
                k++;
            } while (k <= last);
            if (run_of_blocks > turn.left) flags |= BAD_CODE, run_of_blocks = turn.left;
            turn.left -= run_of_blocks;
            passed += run_of_blocks;
            if (passed >= to_tell) tell(batch, scan, passed), to_tell = passed + TOLD;
            walk.move(run_of_blocks, per_row, row_words);
            if (flags || reader.bit() > turn.end) break;
        }
        flags |= turn.close(reader.bit(), stream);
        if (flags) break;
    }
    return flags;
}

// Return whether the bit that corrects a coefficient is set.
DEVICE bool corrected(const Stream &stream, int bit) { return stream.words[bit >> 5] >> (31 - (bit & 31)) & 1; }

DEVICE u32 more_ac(const Batch *batch, const Scan &scan, const Image &image, ScanCodes &codes, const Stream &stream) {
    if (!read_codes(codes, batch, image, scan.part[0].table, 0, 0, CODE_BITS, false)) return BAD_TABLE;
    const u8 *symbols = batch->raw + image.raw + scan.part[0].table + 16;
    const int lane = (int)arrived(threadIdx.x), first = (int)arrived(scan.first), last = (int)arrived(scan.last);
    const int per_row = (int)arrived(scan.mcus_x), row_words = (int)arrived(32 * scan.part[0].stride);
    const int step = 1 << scan.low;
    const u32 below = (1u << lane) - 1;
    const bool within0 = lane >= first && lane <= last, within1 = lane + 32 >= first && lane + 32 <= last;
    const SharedWords entries(codes.entry);
    u32 *mine = kept((u32 *)(batch->coefficients + scan.part[0].coefficients) + lane);
    for (int i = lane; i < PLACES; i += 32) codes.place[i] = NOWHERE;
    ScanReader reader;
    Walk walk = {0, 0}, fetched = {0, 0};
    int fetches = 0, ready = 0;
    const int mcus = (int)arrived(scan.mcus);
    u32 ahead[AHEAD];
    auto fetch = [&]() {
        u32 word = 0;
        if (fetches < mcus) {
            if (fetches >= ready) ready = wait_for_more(batch, scan, fetches);
            word = load_past_cache(mine + fetched.word);
        }
        fetches++;
        fetched.move(1, per_row, row_words);
        return word;
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) ahead[i] = fetch();
    u32 flags = 0;
    for (Turn turn = {0, 0, 0, 0}; turn.open(scan, stream);) {
        reader.seek(stream, turn.begin);
        int ended = 0;  // number of blocks, from this one on, that have no more new coefficients
        for (; turn.left > 0; turn.left--) {
            u32 word = ahead[0];
#pragma unroll
            for (int i = 1; i < AHEAD; i++) ahead[i - 1] = ahead[i];
            ahead[AHEAD - 1] = fetch();
            if (fetches % TOLD == 0 && fetches > AHEAD) tell(batch, scan, fetches - AHEAD - 1);
            int value0 = (i16)word, value1 = (int)word >> 16;
            bool old0 = within0 && value0, old1 = within1 && value1;
            u32 olds0 = __ballot_sync(~0u, old0), olds1 = __ballot_sync(~0u, old1);
            i16 *to = (i16 *)(mine + walk.word);
            walk.move(1, per_row, row_words);
            if (ended && !(olds0 | olds1)) {
                ended--;
                continue;
            }
            int in_first = __popc(olds0), olds = in_first + __popc(olds1);
            // coefficients that are not zero before mine
            int before0 = __popc(olds0 & below), before1 = in_first + __popc(olds1 & below);
            int fresh0 = 0, fresh1 = 0;
            // Positions of the bits that correct my coefficients, if no other bits were between the codes.
            int codes_end = reader.bit(), codes0 = codes_end, codes1 = codes_end;
            int passed = 0;  // nonzero coefficients before
            if (ended == 0) {
                // number of zeros before my coefficient if it is zero itself
                int zeros0 = within0 && !old0 ? lane - first - before0 : -1;
                int zeros1 = within1 && !old1 ? lane + 32 - first - before1 : -1;
                __syncwarp();
                if (zeros0 >= 0) codes.place[zeros0] = lane;
                if (zeros1 >= 0) codes.place[zeros1] = lane + 32;
                if (lane < 16) codes.place[last - first + 1 - olds + lane] = NOWHERE;
                __syncwarp();
                int k = first, zeros = 0;
#pragma unroll 1
                do {
                    u32 bits = reader.peek(), entry = entries[bits >> (32 - CODE_BITS)];
                    if (ENDS_BLOCKS(entry)) {  // ends the block; or 0
                        if (entry == 0) entry = longer_code(codes, symbols, 0, bits, CODE_BITS);
                        if (ENDS_BLOCKS(entry)) {
                            int length = entry & 255, run = run_of(entry);
                            ended = (1 << run) + (int)shift_right(bits << length, 32 - run);
                            reader.position += length + run;
                            codes_end += length + run;
                            codes0 = lane >= k ? codes_end : codes0;
                            codes1 = lane + 32 >= k ? codes_end : codes1;
                            break;
                        }
                    }
                    u32 length = entry & 255, size = entry >> 16;
                    bits <<= length;
                    zeros += run_of(entry);
                    // nonzero coefficients up to that position
                    int place = codes.place[zeros], behind = place - first - zeros;
                    reader.position += length + size + behind - passed;
                    reader.advance();
                    passed = behind;
                    if (size > 1 || place == NOWHERE) flags |= BAD_CODE;
                    int value = (int)bits < 0 ? step : -step;
                    if (size == 0) value = 0;
                    fresh0 = zeros0 == zeros ? value : fresh0;
                    fresh1 = zeros1 == zeros ? value : fresh1;
                    codes_end += length + size;
                    codes0 = lane >= k ? codes_end : codes0;
                    codes1 = lane + 32 >= k ? codes_end : codes1;
                    zeros++;
                    k = place + 1;
                } while (k <= last);
                if (ended > turn.left) flags |= BAD_CODE, ended = turn.left;
            }
            if (ended) {
                reader.position += olds - passed;
                reader.advance();
                ended--;
            }
            if (old0 && corrected(stream, codes0 + before0)) fresh0 = value0 + (value0 < 0 ? -step : step);
            if (old1 && corrected(stream, codes1 + before1)) fresh1 = value1 + (value1 < 0 ? -step : step);
            // Store the halves of a word separately: another scan may be writing the other half.
            if (fresh0) to[0] = (i16)fresh0;
            if (fresh1) to[1] = (i16)fresh1;
            if (flags || reader.bit() > turn.end) break;
        }
        flags |= turn.close(reader.bit(), stream);
        if (flags) break;
    }
    return flags;
}

KERNEL __launch_bounds__(32, SCAN_WARPS) jpeg_scans(const Batch *batch) {
    __shared__ ScanCodes codes;
    // Scans start in this order: those of an image as they are in its file, and the largest images first.
    u32 nth = threadIdx.x == 0 ? atomicAdd(batch->tickets + 2, 1u) : 0;
    const Scan &scan = batch->scans[__shfl_sync(~0u, nth, 0)];
    int at = scan.image;
    const Image &image = batch->images[at];
    // Another scan of the image may be found to be damaged in the meantime.
    int lost = threadIdx.x == 0 ? batch->status[at] | *(const volatile i32 *)(batch->status + image.owner) : 0;
    if (!__shfl_sync(~0u, lost, 0)) {
        const Stream stream = stream_of(batch, at);
        u32 flags;
        if (scan.first == 0)
            flags = scan.high == 0 ? first_dc(batch, scan, image, codes, stream) : more_dc(batch, scan, stream);
        else
            flags = scan.high == 0 ? first_ac(batch, scan, image, codes, stream) : more_ac(batch, scan, image, codes, stream);
        if (flags && threadIdx.x == 0) mark(batch, image, at, (int)flags);
    }
    tell(batch, scan, ALL);
}
