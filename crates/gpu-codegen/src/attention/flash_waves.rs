//! How the kernels of attention of 16-bit numbers feed matrix cores of waves (`dialect/hip/cores.cu`). Scores are computed turned, keys
//! by queries, so that a lane has the scores of one query and these are, rounded, a factor of the next product: queries stay in
//! registers, keys lie in shared memory as they are and values turned. The next tiles are on their way while one is multiplied.

use crate::attention::Operands;
use crate::attention::flash::{Flash, PAD, Words, round_up_16};
use crate::text::body::Uses;
use crate::text::types::value_type;
use crate::{GenError, Kernel};

/// Elements between the ends of two lines of a turned tile: as `turned_place`.
pub(crate) const TURNED_PAD: i64 = 8;

/// Lines of a turned tile: whole fragments.
pub(crate) fn lines(elements: i64, far: i64) -> i64 {
    (elements + far - 1) / far * far
}

/// Bytes of shared memory: a tile of keys, and one of values.
pub(crate) fn shared(flash: &Flash<'_>) -> i64 {
    let tile = flash.tile();
    let values = lines(flash.width, flash.fragments.far) * (tile + TURNED_PAD);
    2 * (tile * (round_up_16(flash.depth) + PAD) + values)
}

/// Tells the compiler that two waves are to share a SIMD of waves of 64, as far as registers hold what both have (`fits`). Where one may have
/// all 512 it keeps sums in the half that arithmetic cannot read, and copies each to the other half and back.
pub(crate) fn two_waves(kernel: &mut Kernel, flash_wave: i64, fits: bool) {
    if flash_wave == 64 && fits {
        let bounds = format!("__launch_bounds__({})", kernel.launch.threads);
        let both = format!("__launch_bounds__({}, 2)", kernel.launch.threads);
        kernel.source = kernel.source.replacen(&bounds, &both, 1);
    }
}

/// How many waves a block may have, the most first: each brings a part of the tiles through its registers. Of 256 and more registers a
/// lane two waves of a SIMD have too few, and of rows that long on waves of 32 only as many waves as bring little each.
pub(crate) fn warps(flash: &Flash<'_>) -> Vec<i64> {
    let long = flash.depth.max(flash.width);
    match flash.fragments.wave {
        32 if long > 64 => vec![8],
        64 if long > 128 => vec![4, 2],
        _ => vec![8, 4, 2, 1],
    }
}

/// The lambda that says where eight elements of a row are, by the names of the row's number and of its parameters.
pub(crate) fn at(
    ty: &str,
    (parameters, row): (&str, &str),
    [within, source]: [&str; 2],
    elements: i64,
) -> String {
    format!(
        "[&]({parameters}) -> const {ty} * {{ {row}const idx d = part; return {within} && part < {elements} ? &{source} : 0; }}"
    )
}

/// The words of waves.
pub(crate) fn words(
    flash: &Flash<'_>,
    o: &Operands<'_>,
    warps: i64,
    uses: &mut Uses,
) -> Result<Words, GenError> {
    let (k, f, tile) = (flash.k, &flash.fragments, flash.tile());
    let ty = value_type(flash.dtype)?;
    let (dp, dk) = (round_up_16(flash.depth) + PAD, round_up_16(flash.depth) / f.inner);
    let (nt, wt) = (tile / f.far, lines(flash.width, f.far) / f.far);
    let threads = f.wave * warps;
    let query = o.element(&k.q, ["i0", "i1", "i2", "d"], uses);
    let key = o.element(&k.k, ["i0", "kv", "j", "d"], uses);
    let value = o.element(&k.v, ["i0", "kv", "j", "d"], uses);
    let queries = at(
        ty,
        ("int part", &format!("const idx i2 = row0 + warp * {} + line4; ", f.own)),
        [&format!("i2 < {}", o.rows), &query],
        flash.depth,
    );
    let row = ("int line, int part", "const idx j = from + line; ");
    let keys = at(ty, row, ["j < limit", &key], flash.depth);
    let values = at(ty, row, ["j < limit", &value], flash.width);
    let take = format!("fill_k.take({keys});\nfill_v.take({values});\n");
    let land = format!("fill_k.template plain<{dp}>(sk);\nfill_v.turned(sv);\n");
    // A tile that every row of the block sees whole needs no look at each score: they are scaled with the exponent.
    let plain = !k.is_masked() && k.scale > 0.0;
    let before_row = if k.causal { format!(" && j0 + {} <= row0", tile - 1) } else { String::new() };
    let (before_look, behind_look, by) = match plain {
        true => (
            format!(
                "const bool whole = j0 + {tile} <= limit{before_row};
const float factor = whole ? {scale} * 1.4426950408889634f : 1.0f;
if (whole) {{
#pragma unroll
for (int n = 0; n < {nt}; ++n)
#pragma unroll
for (int e = 0; e < {parts}; ++e) top[0] = fmaxf(top[0], score[n][e]);
top[0] *= factor;
}} else {{
",
                scale = o.scale,
                parts = f.parts,
            ),
            "}\n".to_owned(),
            "fmaf(score[n][e], factor, -shift[0])",
        ),
        false => (String::new(), String::new(), "score[n][e] - shift[0]"),
    };
    Ok(Words {
        places: format!(
            "typedef Core<{ty}, {far}> C;\n{ty} *sk = ({ty} *)memory, *sv = sk + {tile} * {dp};\n",
            far = f.far
        ),
        begin: format!(
            "C::Held q[{dk}];
#pragma unroll
for (int s = 0; s < {dk}; ++s) q[s] = C::gather({queries}, s * C::K, lane);
RowFiller<{ty}, {tile}, {depth}, {threads}> fill_k;
RowFiller<{ty}, {tile}, {width}, {threads}> fill_v;
{{ const idx from = 0;
{take}}}
{land}C::Sums out[{wt}] = {{}};
",
            depth = round_up_16(flash.depth),
            width = flash.width,
        ),
        score: format!("C::Sums score[{nt}]"),
        out: "float".into(),
        prefetch: format!(
            "if (j0 + {tile} < limit) {{ const idx from = j0 + {tile};
{take}}}
block_sync();
"
        ),
        scores: format!(
            "#pragma unroll
for (int s = 0; s < {dk}; ++s) {{
#pragma unroll
for (int n = 0; n < {nt}; ++n) C::run(score[n], C::row_at(sk + (n * C::M + line4) * {dp} + s * C::K, lane), q[s]);
step_end();
}}
"
        ),
        before_look,
        behind_look,
        shrink: format!("#pragma unroll\nfor (int t = 0; t < {wt}; ++t) out[t] *= shrink;\n"),
        weight: format!("exp2_flushed({by})"),
        products: format!(
            "#pragma unroll
for (int s = 0; s < {tile} / C::K; ++s) {{
const C::Held w = C::made(score, s, lane);
#pragma unroll
for (int t = 0; t < {wt}; ++t) C::run(out[t], C::template turned<{tile}>(sv, t * C::M + line4, s * C::K, lane), w);
step_end();
}}
"
        ),
        turn_end: format!("block_sync();\nif (j0 + {tile} < limit) {{\n{land}}}\n"),
        end: String::new(),
        wide: f.far,
    })
}
