//! How the fragments of scores of attention lie in the registers of a warp: data that the texts of its kernels are written by. Not here: the
//! instructions (`cuda/instructions.cu`, `hip/cores.cu`).

use crate::Target;

/// Scores of a warp's own rows (of queries, or of keys in gradients) by rows of the far side. `e` numbers what a lane has of a fragment,
/// `n` the fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragments {
    /// Lanes of a warp.
    pub(crate) wave: i64,
    /// Own rows of a warp.
    pub(crate) own: i64,
    /// Far rows of a fragment.
    pub(crate) far: i64,
    /// Numbers that a lane has of a fragment.
    pub(crate) parts: i64,
    /// Own rows that a lane has numbers of.
    pub(crate) slots: i64,
    /// Which of those a number is of.
    pub(crate) slot: &'static str,
    /// How far that row is from the lane's first one.
    pub(crate) own_row: &'static str,
    /// The far row of a number, in its fragment.
    pub(crate) far_row: &'static str,
    /// By what the numbers of lanes differ that have the same rows.
    pub(crate) partners: &'static [i64],
    /// Statements that number the lanes: `lane`, `warp`, and `line4`, the lane's first own row.
    pub(crate) lanes: &'static str,
    /// Inner points of a product of two tiles that one instruction or a pair of them takes.
    pub(crate) inner: i64,
}

/// `mma.m16n8k16`: rows are lanes in fours.
const MMA: Fragments = Fragments {
    wave: 32,
    own: 16,
    far: 8,
    parts: 4,
    slots: 2,
    slot: "e >> 1",
    own_row: "(e >> 1) * 8",
    far_row: "pair * 2 + (e & 1)",
    partners: &[1, 2],
    lanes: "const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, line4 = lane >> 2, pair = lane & 3;",
    inner: 16,
};

/// `v_mfma_f32_32x32x8`, turned: an own row is a column of the fragment.
const MFMA: Fragments = Fragments {
    wave: 64,
    own: 32,
    far: 32,
    parts: 16,
    slots: 1,
    slot: "0",
    own_row: "0",
    far_row: "C::row(lane, e)",
    partners: &[32],
    lanes: "const int lane = threadIdx.x & 63, warp = threadIdx.x >> 6, line4 = lane & 31;",
    inner: 16,
};

/// `v_wmma_f32_16x16x16`, turned.
const WMMA: Fragments = Fragments {
    wave: 32,
    own: 16,
    far: 16,
    parts: 8,
    partners: &[16],
    lanes: "const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, line4 = lane & 15;",
    ..MFMA
};

impl Fragments {
    /// Those of a target; `None` where there are no matrix cores.
    pub(crate) fn of(target: &Target) -> Option<Fragments> {
        let features = target.features;
        let known = [(features.mma, MMA), (features.mfma, MFMA), (features.wmma, WMMA)];
        known.into_iter().find(|(there, _)| *there).map(|(_, fragments)| fragments)
    }

    /// Whether an own row is a column of the fragment, whose numbers a lane has.
    pub(crate) fn turned(&self) -> bool {
        self.slots == 1
    }

    /// So many numbers as a lane has own rows: what an array of them begins with.
    pub(crate) fn each(&self, number: &str) -> String {
        vec![number; self.slots as usize].join(", ")
    }

    /// Statements by which the lanes of a row combine `value`: `call(value, other)`.
    pub(crate) fn combine(&self, write: impl Fn(i64) -> String) -> String {
        self.partners.iter().map(|&by| write(by)).collect()
    }
}
