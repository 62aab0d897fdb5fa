// Encode pixels as baseline JPEG files, identical to those of libjpeg-turbo with its accurate integer DCT ("islow").
//
//     dct -> [histogram -> tables] -> count -> scan -> pack -> measure -> stuff
//
// dct: colour, chroma downsampling, forward DCT, quantisation; histogram, tables: Huffman tables for each image; count,
// scan: number of bits and position of each coded block; pack: writes the codes; measure, stuff: FF becomes FF 00, and
// headers and data are written file after file. Blocks are stored in the order in which they are coded (MCU by MCU).
#include "jpeg_common.cuh"

#define TILE 48                    // coded blocks that a block of threads transforms: whole MCUs of 1, 3, 4 or 6 blocks
#define DCT_THREADS (8 * TILE)
#define TILE_ROW 12                // rows of 12 words, blocks 104 words apart, so that no access of a warp
#define TILE_BLOCK 104             // uses a bank twice
#define CODED 128                  // coded blocks that a block of threads counts or packs, one each
#define MOST_BITS 1665  // maximum bits of a coded block: 27 for its DC coefficient, 26 for each of the others
#define STUFF_THREADS 512
#define STUFF_CHUNK (16 * STUFF_THREADS)
#define HEADER_ROOM 1024
#define SYMBOLS 256
// entries of the Huffman tables of an image: DC and AC of luminance, DC and AC of chrominance
#define SET (4 * SYMBOLS)

struct Picture {                   // mirrored by jpeg_encode_gpu.PICTURE
    i64 pixels;                    // first byte
    i64 stream;                    // first byte of its slot for coded bits, a multiple of 16
    i32 first_block, blocks;       // index of its first coded block, and their number
    i32 width, height, components;
    i32 h, v;                      // sampling factors of the first component; the others have 1 x 1
    i32 mcus_x, mcus, in_mcu;      // MCUs per row, in all; blocks per MCU
    i32 capacity;                  // bytes of the slot
    i32 header, codes;             // index of its header, and of its set of code tables
    i32 unused;
};

// -- samples and coefficients ----------------------------------------------------------------------------------------

// Compute the samples of the 8 x 8 chroma positions of an MCU, one position (`unit`) per call, with the luma samples
// that it covers. Beyond the right border, the last pixel is repeated; beyond the lower border, the last row of samples
// of each component, downsampled or not.
DEVICE void take_samples(const Picture &p, const u8 *pixels, int mcu, int unit, u8 *blocks) {
    int column = unit & 7, row = unit >> 3, mcu_y = mcu / p.mcus_x, mcu_x = mcu - mcu_y * p.mcus_x;
    int x = mcu_x * 8 + column, y = mcu_y * 8 + row;
    if (p.components == 1) {
        blocks[unit] = pixels[(i64)min(y, p.height - 1) * p.width + min(x, p.width - 1)];
        return;
    }
    int last = (p.height - 1) / p.v;
    bool below = y > last;
    y = min(y, last);
    int sum_cb = 0, sum_cr = 0;
    for (int sy = 0; sy < p.v; sy++) {
        const u8 *line = pixels + (i64)min(y * p.v + sy, p.height - 1) * p.width * 3;
        for (int sx = 0; sx < p.h; sx++) {
            const u8 *pixel = line + 3 * min(x * p.h + sx, p.width - 1);
            int r = pixel[0], g = pixel[1], b = pixel[2];
            // JFIF's BT.601 in 16-bit fixed point; the constants and their rounding are libjpeg's.
            u8 luma = (u8)((19595 * r + 38470 * g + 7471 * b + 32768) >> 16);
            sum_cb += (-11059 * r - 21709 * g + 32768 * b + (128 << 16) + 32767) >> 16;
            sum_cr += (32768 * r - 27439 * g - 5329 * b + (128 << 16) + 32767) >> 16;
            int at_x = column * p.h + sx;
            for (int to = below ? 0 : sy; to <= sy; to++) {  // rows below the image repeat the last one
                int at_y = row * p.v + to;
                blocks[((at_y >> 3) * p.h + (at_x >> 3)) * 64 + (at_y & 7) * 8 + (at_x & 7)] = luma;
            }
        }
    }
    // libjpeg rounds halves up and down alternately, column by column.
    int shift = p.h + p.v - 2, bias = shift ? (column & 1) + shift - 1 : 0;
    u8 *chroma = blocks + p.h * p.v * 64;
    chroma[unit] = (u8)((sum_cb + bias) >> shift);
    chroma[64 + unit] = (u8)((sum_cr + bias) >> shift);
}

// Compute one dimension of the forward transform (Loeffler, Ligtenberg and Moschytz 1989) in place. The result is
// scaled by 2^13.
DEVICE void fdct8(int *x) {
    int sum0 = x[0] + x[7], sum1 = x[1] + x[6], sum2 = x[2] + x[5], sum3 = x[3] + x[4];
    int odd0 = x[0] - x[7], odd1 = x[1] - x[6], odd2 = x[2] - x[5], odd3 = x[3] - x[4];
    int even0 = sum0 + sum3, even1 = sum1 + sum2, even2 = sum1 - sum2, even3 = sum0 - sum3;
    x[0] = (even0 + even1) * 8192, x[4] = (even0 - even1) * 8192;
    int z = (even2 + even3) * 4433;                              // 0.541196100
    x[2] = z + even3 * 6270, x[6] = z - even2 * 15137;           // 0.765366865, 1.847759065

    int z5 = (odd3 + odd1 + odd2 + odd0) * 9633;                 // 1.175875602
    int z1 = (odd3 + odd0) * -7373, z2 = (odd2 + odd1) * -20995;  // 0.899976223, 2.562915447
    int z3 = (odd3 + odd1) * -16069 + z5;                        // 1.961570560
    int z4 = (odd2 + odd0) * -3196 + z5;                         // 0.390180644
    x[7] = odd3 * 2446 + z1 + z3, x[5] = odd2 * 16819 + z2 + z4;   // 0.298631336, 2.053119869
    x[3] = odd1 * 25172 + z2 + z3, x[1] = odd0 * 12299 + z1 + z4;  // 3.072711026, 1.501321110
}

// ``quant`` holds, for each of two tables, by 8 * row + column: 2^32 / divisor, rounded up; half the divisor << 8 |
// zig-zag index.
KERNEL __launch_bounds__(DCT_THREADS) jpeg_encode_dct(
    const u8 *pixels, const Picture *pictures, const i32 *tile_first, i32 count, const uint2 *quant, i16 *coefficients, u64 *masks
) {
    __shared__ __align__(16) u8 samples[TILE * 64];
    __shared__ __align__(16) int workspace[TILE * TILE_BLOCK];
    int at = locate(tile_first, count, blockIdx.x);
    const Picture p = pictures[at];
    int first = ((int)blockIdx.x - tile_first[at]) * (TILE / p.in_mcu), mcus = min(TILE / p.in_mcu, p.mcus - first);
    for (int unit = threadIdx.x; unit < mcus * 64; unit += DCT_THREADS)
        take_samples(p, pixels + p.pixels, first + (unit >> 6), unit & 63, samples + (unit >> 6) * p.in_mcu * 64);
    __syncthreads();

    int lane = threadIdx.x & 7, block = threadIdx.x >> 3;
    bool real = block < mcus * p.in_mcu;
    int mcu = block / p.in_mcu, nth = block - mcu * p.in_mcu, luma = p.h * p.v;
    int *tile = workspace + block * TILE_BLOCK;
    int x[8];
    uint2 row = *(const uint2 *)(samples + block * 64 + lane * 8);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = (int)((i < 4 ? row.x : row.y) >> (8 * (i & 3)) & 255) - 128;
    fdct8(x);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = (x[i] + (1 << 10)) >> 11;
    *(uint4 *)(tile + lane * TILE_ROW) = make_uint4(x[0], x[1], x[2], x[3]);
    *(uint4 *)(tile + lane * TILE_ROW + 4) = make_uint4(x[4], x[5], x[6], x[7]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = tile[i * TILE_ROW + lane];
    fdct8(x);
    __syncwarp();

    i16 *zigzag = (i16 *)tile;
    const uint2 *table = quant + (nth >= luma ? 64 : 0);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int value = (x[i] + (1 << 14)) >> 15;
        uint2 how = table[8 * i + lane];
        int level = (int)__umulhi((u32)abs(value) + (how.y >> 8), how.x);  // exact: the sum is below 2^16
        zigzag[how.y & 63] = (i16)(value < 0 ? -level : level);
    }
    __syncthreads();

    // Blocks beyond the image that fill up an MCU have no AC coefficients, and the DC coefficient of the previous
    // block.
    int in_x = nth % p.h, in_y = nth / p.h, mcu_y = (first + mcu) / p.mcus_x, mcu_x = first + mcu - mcu_y * p.mcus_x;
    int across = (p.width + 7) >> 3, down = (p.height + 7) >> 3;
    bool luma_block = nth < luma;
    bool beyond_x = luma_block && mcu_x * p.h + in_x >= across, beyond_y = luma_block && mcu_y * p.v + in_y >= down;
    uint4 mine = *(const uint4 *)(zigzag + 8 * lane);
    if (beyond_x || beyond_y) {
        int before = beyond_y ? (mcu_x * p.h + p.h - 1 < across ? p.h - 1 : 0) : in_y * p.h;
        u16 dc = *(const u16 *)(workspace + (block - nth + before) * TILE_BLOCK);
        mine = make_uint4(lane == 0 ? dc : 0, 0, 0, 0);
    }
    u32 mask = 0;
    u32 words[4] = {mine.x, mine.y, mine.z, mine.w};
#pragma unroll
    for (int i = 0; i < 4; i++) mask |= (u32)((words[i] & 0xffff) != 0) << (2 * i) | (u32)(words[i] >> 16 != 0) << (2 * i + 1);
    if (lane == 0) mask &= ~1u;
    mask <<= 8 * (lane & 3);
    mask |= __shfl_xor_sync(~0u, mask, 1);
    mask |= __shfl_xor_sync(~0u, mask, 2);
    u32 other = __shfl_xor_sync(~0u, mask, 4);
    if (!real) return;
    i64 to = p.first_block + (i64)first * p.in_mcu + block;
    *(uint4 *)(coefficients + to * 64 + 8 * lane) = mine;
    if (lane == 0) masks[to] = (u64)other << 32 | mask;
}

// -- symbols ---------------------------------------------------------------------------------------------------------

DEVICE int bits_of(int value) { return 32 - __clz(abs(value)); }

// Call visit(table, symbol, value, bits of the value) for each symbol of coded block `block` of an image (T.81, F.1.2);
// table 0 is DC, 1 is AC.
template <class Visit> DEVICE void visit_symbols(const Picture &p, int block, const i16 *coefficients, u64 mask, Visit visit) {
    int mcu = block / p.in_mcu, nth = block - mcu * p.in_mcu, luma = p.h * p.v;
    int before = nth >= luma || luma == 1 ? block - p.in_mcu : nth ? block - 1 : block - p.in_mcu + luma - 1;
    const i16 *mine = coefficients + (i64)block * 64;
    int dc = mine[0] - (before < 0 ? 0 : coefficients[(i64)before * 64]);
    visit(0, bits_of(dc), dc, bits_of(dc));
    int last = 0;
    for (; mask; mask &= mask - 1) {
        int at = __ffsll((i64)mask) - 1, run = at - last - 1, value = mine[at];
        for (; run >= 16; run -= 16) visit(1, 0xf0, 0, 0);
        visit(1, run << 4 | bits_of(value), value, bits_of(value));
        last = at;
    }
    if (last < 63) visit(1, 0, 0, 0);
}

DEVICE bool is_chroma(const Picture &p, int block) { return block % p.in_mcu >= p.h * p.v; }

// Count each symbol of each image: frequencies [image][table][symbol], zero before.
KERNEL __launch_bounds__(CODED) jpeg_encode_histogram(
    const Picture *pictures, const i32 *chunk_first, i32 count, const i16 *coefficients, const u64 *masks, u32 *frequencies
) {
    __shared__ u32 found[SET];
    int at = locate(chunk_first, count, blockIdx.x);
    const Picture p = pictures[at];
    for (int i = threadIdx.x; i < SET; i += CODED) found[i] = 0;
    __syncthreads();
    int block = ((int)blockIdx.x - chunk_first[at]) * CODED + threadIdx.x;
    if (block < p.blocks) {
        u32 *tables = found + (is_chroma(p, block) ? 2 * SYMBOLS : 0);
        visit_symbols(p, block, coefficients + (i64)p.first_block * 64, masks[p.first_block + block],
                      [&](int table, int symbol, int, int) { atomicAdd(&tables[table * SYMBOLS + symbol], 1u); });
    }
    __syncthreads();
    for (int i = threadIdx.x; i < SET; i += CODED)
        if (found[i]) atomicAdd(&frequencies[(i64)at * SET + i], found[i]);
}

DEVICE u32 warp_min(u32 x) {
    for (int step = 16; step; step >>= 1) x = min(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

// Compute one Huffman table with one warp: T.81, K.2; of equal frequencies, libjpeg chooses the highest symbol first.
// lengths (shared, SYMBOLS bytes) becomes the code length of each symbol, counts (shared, 64 words) the number of codes
// of each length.
DEVICE void make_lengths(const u32 *frequencies, u8 *lengths, u32 *counts) {
    int lane = threadIdx.x & 31;
    // A lane holds symbols i * 32 + lane. Symbol 256 is never coded: it reserves the code of ones only, which files
    // must not contain.
    u32 frequency[9], length[9], group[9];
    const u32 NONE = ~0u;
#pragma unroll
    for (int i = 0; i < 9; i++) {
        u32 symbol = i * 32 + lane, given = i < 8 ? frequencies[symbol] : lane == 0;
        frequency[i] = given ? given : NONE;
        length[i] = 0, group[i] = symbol;
    }
    counts[lane] = counts[lane + 32] = 0;
    for (;;) {  // join the two rarest groups until one is left
        u32 rarest[2], sum = 0;
        for (int turn = 0; turn < 2; turn++) {
            u32 least = NONE, inverse = NONE;
#pragma unroll
            for (int i = 0; i < 9; i++) least = min(least, frequency[i]);
            least = warp_min(least);
#pragma unroll
            for (int i = 0; i < 9; i++)
                if (least != NONE && frequency[i] == least) inverse = min(inverse, 511u - (i * 32 + lane));
            inverse = warp_min(inverse);
            rarest[turn] = inverse == NONE ? NONE : 511 - inverse;
            if (rarest[turn] == NONE) break;
            sum += least;
#pragma unroll
            for (int i = 0; i < 9; i++)
                if ((u32)(i * 32 + lane) == rarest[turn]) frequency[i] = NONE;
        }
        bool single = rarest[1] == NONE;
#pragma unroll
        for (int i = 0; i < 9; i++) {
            if (single) break;
            if ((u32)(i * 32 + lane) == rarest[0]) frequency[i] = sum;
            if (group[i] == rarest[0] || group[i] == rarest[1]) length[i]++, group[i] = rarest[0];
        }
        if (single) break;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 9; i++) {
        if (length[i]) atomicAdd(&counts[min(length[i], 63u)], 1u);
        if (i < 8) lengths[i * 32 + lane] = (u8)length[i];
    }
    __syncwarp();
    if (lane == 0) {  // limit codes to 16 bits (T.81, figure K.3), and drop that of symbol 256
        for (int i = 63; i > 16; i--)
            while (counts[i]) {
                int j = i - 2;
                while (!counts[j]) j--;
                counts[i] -= 2, counts[i - 1]++, counts[j + 1] += 2, counts[j]--;
            }
        int i = 16;
        while (i && !counts[i]) i--;
        if (i) counts[i]--;
    }
    __syncwarp();
}

// Compute the Huffman tables of each image: codes [image][table][symbol] = length << 16 | code. Complete its header,
// which contains the segments before the tables: headers [image][HEADER_ROOM], header_sizes before and after. One block
// of threads per image, one warp per table.
KERNEL __launch_bounds__(128) jpeg_encode_tables(
    const Picture *pictures, const u32 *frequencies, u32 *codes, u8 *headers, i32 *header_sizes
) {
    __shared__ u8 lengths[4][SYMBOLS], order[4][SYMBOLS];
    __shared__ u32 counts[4][64], code_of[4][SYMBOLS];
    __shared__ int used[4];
    int at = blockIdx.x, lane = threadIdx.x & 31, table = threadIdx.x >> 5, tables = pictures[at].components == 1 ? 2 : 4;
    if (table < tables) {
        make_lengths(frequencies + ((i64)at * 4 + table) * SYMBOLS, lengths[table], counts[table]);
        if (lane == 0) {
            int n = 0;
            u32 code = 0;
            for (int length = 1; length <= 16; length++, code <<= 1)
                for (u32 i = 0; i < counts[table][length]; i++) code_of[table][n++] = length << 16 | code++;
            used[table] = n;
        }
        __syncwarp();
        for (int i = 0; i < 8; i++) {
            int symbol = i * 32 + lane, length = lengths[table][symbol], rank = 0;
            for (int j = 0; j < SYMBOLS; j++) {
                int other = lengths[table][j];
                rank += other && (other < length || (other == length && j < symbol));
            }
            if (length) order[table][rank] = (u8)symbol;
            codes[((i64)at * 4 + table) * SYMBOLS + symbol] = length ? code_of[table][rank] : 0;
        }
    }
    __syncthreads();
    u8 *header = headers + (i64)at * HEADER_ROOM + header_sizes[at];
    int size = 0;
    for (int i = 0; i < tables; i++) {
        u8 *segment = header + size;
        int length = 19 + used[i];
        if (i == table) {
            u8 head[5] = {0xff, 0xc4, (u8)(length >> 8), (u8)length, (u8)((i & 1) << 4 | i >> 1)};
            for (int j = lane; j < 5; j += 32) segment[j] = head[j];
            for (int j = lane; j < 16; j += 32) segment[5 + j] = (u8)counts[i][j + 1];
            for (int j = lane; j < used[i]; j += 32) segment[21 + j] = order[i][j];
        }
        size += length + 2;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int components = pictures[at].components;
        u8 *scan = header + size;
        scan[0] = 0xff, scan[1] = 0xda, scan[2] = 0, scan[3] = (u8)(6 + 2 * components), scan[4] = (u8)components;
        for (int c = 0; c < components; c++) scan[5 + 2 * c] = (u8)(c + 1), scan[6 + 2 * c] = c ? 0x11 : 0;
        u8 *end = scan + 5 + 2 * components;
        end[0] = 0, end[1] = 63, end[2] = 0;
        header_sizes[at] += size + 8 + 2 * components;
    }
}

// -- coded bits ------------------------------------------------------------------------------------------------------

// Compute the position of each coded block in its chunk of CODED blocks (places), and the bits of each chunk.
KERNEL __launch_bounds__(CODED) jpeg_encode_count(
    const Picture *pictures, const i32 *chunk_first, i32 count, const u32 *codes, const i16 *coefficients, const u64 *masks,
    u32 *places, u32 *chunk_bits
) {
    int at = locate(chunk_first, count, blockIdx.x);
    const Picture p = pictures[at];
    int block = ((int)blockIdx.x - chunk_first[at]) * CODED + threadIdx.x;
    u32 bits = 0, total;
    if (block < p.blocks) {
        const u32 *tables = codes + (i64)p.codes * SET + (is_chroma(p, block) ? 2 * SYMBOLS : 0);
        visit_symbols(p, block, coefficients + (i64)p.first_block * 64, masks[p.first_block + block],
                      [&](int table, int symbol, int, int size) { bits += (tables[table * SYMBOLS + symbol] >> 16) + size; });
    }
    u32 sum = block_sum(bits, &total);
    if (block < p.blocks) places[p.first_block + block] = sum - bits;
    if (threadIdx.x == 0) chunk_bits[blockIdx.x] = total;
}

// Compute the position of each chunk in its image's stream, in bits, and the bytes of the stream, 0 if they do not fit.
// Words in which two chunks meet are set to zero. One block of threads per image.
KERNEL __launch_bounds__(256) jpeg_encode_scan(
    const Picture *pictures, const i32 *chunk_first, const u32 *chunk_bits, u32 *chunk_start, u8 *streams, u32 *stream_bytes
) {
    int at = blockIdx.x;
    const Picture p = pictures[at];
    u32 before = 0;
    for (int low = chunk_first[at]; low < chunk_first[at + 1]; low += 256) {
        int chunk = low + threadIdx.x;
        bool mine = chunk < chunk_first[at + 1];
        u32 bits = mine ? chunk_bits[chunk] : 0, total, start = before + block_sum(bits, &total) - bits;
        if (mine) {
            chunk_start[chunk] = start;
            if (start / 32 * 4 < (u32)p.capacity) *(u32 *)(streams + p.stream + start / 32 * 4) = 0;
        }
        before += total;
    }
    u32 bytes = (before + 7) / 8;
    if (threadIdx.x == 0) stream_bytes[at] = bytes <= (u32)p.capacity ? bytes : 0;
}

// Write the codes of each block at its position. A chunk is assembled in shared memory.
KERNEL __launch_bounds__(CODED) jpeg_encode_pack(
    const Picture *pictures, const i32 *chunk_first, i32 count, const u32 *codes, const i16 *coefficients, const u64 *masks,
    const u32 *places, const u32 *chunk_bits, const u32 *chunk_start, const u32 *stream_bytes, u8 *streams
) {
    __shared__ u32 stage[(CODED * MOST_BITS + 31 + 7) / 32 + 1];
    int at = locate(chunk_first, count, blockIdx.x);
    if (!stream_bytes[at]) return;
    const Picture p = pictures[at];
    int first = ((int)blockIdx.x - chunk_first[at]) * CODED, block = first + threadIdx.x;
    u32 start = chunk_start[blockIdx.x], from = start & 31, until = from + chunk_bits[blockIdx.x];
    bool final = first + CODED >= p.blocks;
    u32 padding = final ? -until & 7 : 0;  // the last byte is padded with ones
    int words = (until + padding + 31) / 32;
    for (int i = threadIdx.x; i < words; i += CODED) stage[i] = 0;
    __syncthreads();
    if (block < p.blocks) {
        const u32 *tables = codes + (i64)p.codes * SET + (is_chroma(p, block) ? 2 * SYMBOLS : 0);
        u32 place = from + places[p.first_block + block];
        u32 *to = stage + place / 32;
        u64 bits = 0;  // the lowest `held` bits are not yet written
        int held = place & 31;
        auto put = [&](u32 value, int size) {
            bits = bits << size | value;
            held += size;
            if (held >= 32) {
                held -= 32;
                atomicOr(to++, (u32)(bits >> held));
            }
        };
        visit_symbols(p, block, coefficients + (i64)p.first_block * 64, masks[p.first_block + block],
                      [&](int table, int symbol, int value, int size) {
                          u32 code = tables[table * SYMBOLS + symbol];
                          u32 below = (1u << size) - 1, low = (u32)(value - (value < 0)) & below;
                          put((code & 0xffff) << size | low, (int)(code >> 16) + size);
                      });
        if (block == p.blocks - 1) put((1u << padding) - 1, (int)padding);
        if (held) atomicOr(to, (u32)(bits << (32 - held)));
    }
    __syncthreads();
    u32 *out = (u32 *)(streams + p.stream) + start / 32;
    for (int i = threadIdx.x; i < words; i += CODED) {
        u32 word = swap_bytes(stage[i]);
        // whether the word also holds bits of a neighbouring chunk
        bool met = (i == 0 && from) || (i == words - 1 && !final && (until & 31));
        if (met) atomicOr(&out[i], word); else out[i] = word;
    }
}

// -- files -----------------------------------------------------------------------------------------------------------

// Load 16 bytes of a stream at `at`; bytes after its end are zeros.
DEVICE uint4 stream_bytes_at(const u8 *stream, u32 at, u32 end) {
    u32 words[4];
    uint4 all = at < end ? *(const uint4 *)(stream + at) : make_uint4(0, 0, 0, 0);
    words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 place = at + 4 * i, valid = place >= end ? 0 : min(end - place, 4u);
        if (valid < 4) words[i] &= (1u << (8 * valid)) - 1;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// Return how many bytes of a word are FF.
DEVICE u32 count_ff(u32 word) {
    u32 inverse = ~word;
    return 4 - __popc((((inverse & 0x7f7f7f7f) + 0x7f7f7f7f) | inverse) & 0x80808080);
}

DEVICE u32 count_ff(uint4 words) { return count_ff(words.x) + count_ff(words.y) + count_ff(words.z) + count_ff(words.w); }

// Count the FF bytes before each chunk of STUFF_CHUNK bytes in its stream, and compute the size of each file; 0 if the
// stream did not fit. One block of threads per image.
KERNEL __launch_bounds__(STUFF_THREADS) jpeg_encode_measure(
    const Picture *pictures, const i32 *stuff_first, const u32 *stream_bytes, const u8 *streams, const i32 *header_sizes,
    u32 *stuffed_before, u32 *sizes
) {
    int at = blockIdx.x;
    u32 bytes = stream_bytes[at], before = 0, total;
    const u8 *stream = streams + pictures[at].stream;
    for (u32 chunk = 0; chunk * STUFF_CHUNK < bytes; chunk++) {
        if (threadIdx.x == 0) stuffed_before[stuff_first[at] + chunk] = before;
        block_sum(count_ff(stream_bytes_at(stream, chunk * STUFF_CHUNK + threadIdx.x * 16, bytes)), &total);
        before += total;
    }
    if (threadIdx.x == 0) sizes[at] = bytes ? header_sizes[pictures[at].header] + bytes + before + 2 : 0;
}

// Write the files, one after the other. Files that would end beyond `room` are left out. dimensions: positions of
// height and width in each header.
KERNEL __launch_bounds__(STUFF_THREADS) jpeg_encode_stuff(
    const Picture *pictures, const i32 *stuff_first, i32 count, const u32 *stream_bytes, const u8 *streams, const u8 *headers,
    const i32 *header_sizes, const i32 *dimensions, const u32 *stuffed_before, const u32 *sizes, u8 *out, i64 room
) {
    __shared__ u8 stage[2 * STUFF_CHUNK];
    __shared__ u64 base;
    int at = locate(stuff_first, count, blockIdx.x);
    u32 bytes = stream_bytes[at], begin = (blockIdx.x - stuff_first[at]) * STUFF_CHUNK, total;
    if (begin >= bytes) return;
    if (threadIdx.x == 0) base = 0;
    __syncthreads();
    u64 before = 0;
    for (int i = threadIdx.x; i < at; i += STUFF_THREADS) before += sizes[i];
    if (before) atomicAdd(&base, before);
    __syncthreads();
    if ((i64)base + sizes[at] > room) return;
    const Picture p = pictures[at];
    u8 *file = out + base;
    u32 header_size = header_sizes[p.header];
    if (begin == 0) {
        const u8 *header = headers + (i64)p.header * HEADER_ROOM;
        u32 dimension = dimensions[p.header];
        for (u32 i = threadIdx.x; i < header_size; i += STUFF_THREADS) {
            u32 nth = i - dimension;
            file[i] = nth >= 4 ? header[i] : (u8)((nth < 2 ? p.height : p.width) >> (nth & 1 ? 0 : 8));
        }
    }
    u32 mine_at = begin + threadIdx.x * 16;
    uint4 mine = stream_bytes_at(streams + p.stream, mine_at, bytes);
    u32 valid = mine_at < bytes ? min(bytes - mine_at, 16u) : 0, ff = count_ff(mine);
    u32 to = block_sum(valid + ff, &total) - valid - ff;
    u32 words[4] = {mine.x, mine.y, mine.z, mine.w};
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        u8 byte = (u8)(words[i >> 2] >> (8 * (i & 3)));
        if (i >= valid) continue;
        stage[to++] = byte;
        if (byte == 0xff) stage[to++] = 0;
    }
    __syncthreads();
    u8 *target = file + header_size + begin + stuffed_before[blockIdx.x];
    for (u32 i = threadIdx.x; i < total; i += STUFF_THREADS) target[i] = stage[i];
    if (begin + STUFF_CHUNK >= bytes && threadIdx.x < 2) target[total + threadIdx.x] = threadIdx.x ? 0xd9 : 0xff;
}
