//! The instructions that the emitter uses, by their names in the processor's manual (Intel 64 and IA-32 Architectures Software
//! Developer's Manual, volume 2). Names that end in `_X` or `_Y` are of the VEX form alone, on registers of 128 or 256 bits. The tests
//! decode each of them.

use super::encode::Code;

const fn code(prefix: u8, map: u8, op: u8, w: u8) -> Code {
    Code {
        map,
        prefix,
        op,
        w: w == 1,
        memory: 64,
        length: 2,
        reversed: false,
        commutes: false,
        avx512: false,
        avx2: false,
    }
}
const fn commuting(prefix: u8, map: u8, op: u8, w: u8) -> Code {
    Code { commutes: true, ..code(prefix, map, op, w) }
}
/// The operand in memory is half or a quarter as long as the register.
const fn narrow(prefix: u8, map: u8, op: u8, w: u8, memory: u8) -> Code {
    Code { memory, ..code(prefix, map, op, w) }
}
/// The destination is the last operand.
const fn reversed(prefix: u8, map: u8, op: u8, w: u8, memory: u8) -> Code {
    Code { reversed: true, ..narrow(prefix, map, op, w, memory) }
}
/// Registers of 128 bits.
const fn short(prefix: u8, map: u8, op: u8, w: u8) -> Code {
    Code { length: 0, memory: 16, ..code(prefix, map, op, w) }
}
/// Registers of 128 bits, and a shorter operand in memory.
const fn short_of(prefix: u8, map: u8, op: u8, w: u8, memory: u8) -> Code {
    Code { length: 0, memory, ..code(prefix, map, op, w) }
}
/// Registers of 256 bits.
const fn half(prefix: u8, map: u8, op: u8, w: u8, memory: u8) -> Code {
    Code { length: 1, memory, ..code(prefix, map, op, w) }
}
/// VEX alone, registers of 256 bits.
const fn vex(prefix: u8, map: u8, op: u8, w: u8) -> Code {
    half(prefix, map, op, w, 32)
}
/// The same, where the two sources may be exchanged.
const fn vex_commuting(prefix: u8, map: u8, op: u8, w: u8) -> Code {
    Code { commutes: true, ..vex(prefix, map, op, w) }
}
/// Registers of 256 bits; the last operand is the destination, and in memory half as long.
const fn vex_reversed(prefix: u8, map: u8, op: u8, w: u8) -> Code {
    Code { reversed: true, ..half(prefix, map, op, w, 16) }
}
/// Registers of 128 bits; the last operand is the destination.
const fn short_reversed(prefix: u8, map: u8, op: u8, w: u8, memory: u8) -> Code {
    Code { reversed: true, ..short_of(prefix, map, op, w, memory) }
}
/// VEX on masks; `length` 1 is the bit L.
const fn mask(prefix: u8, map: u8, op: u8, w: u8, length: u8) -> Code {
    Code { length, ..code(prefix, map, op, w) }
}

/// The processors that an instruction is for.
#[derive(Clone, Copy)]
enum For {
    /// EVEX and VEX forms have the same prefix, map and opcode.
    Both,
    Avx512,
    Avx2,
}
const fn with(code: Code, processors: For) -> Code {
    let avx512 = matches!(processors, For::Both | For::Avx512);
    Code { avx512, avx2: matches!(processors, For::Both | For::Avx2), ..code }
}

macro_rules! codes {
    ($($processors:ident { $($name:ident $make:ident($($arg:expr),*);)* })*) => {
        $($(pub(super) const $name: Code = with($make($($arg),*), For::$processors);)*)*
        /// Every instruction here, by name.
        #[cfg(test)]
        pub(super) const ALL: &[(&str, Code)] = &[$($((stringify!($name), $name)),*),*];
    };
}

codes! {
    Both {
        VADDPS commuting(0, 1, 0x58, 0);
        VADDPD commuting(1, 1, 0x58, 1);
        VSUBPS code(0, 1, 0x5c, 0);
        VSUBPD code(1, 1, 0x5c, 1);
        VMULPS commuting(0, 1, 0x59, 0);
        VMULPD commuting(1, 1, 0x59, 1);
        VDIVPS code(0, 1, 0x5e, 0);
        VDIVPD code(1, 1, 0x5e, 1);
        VMINPS code(0, 1, 0x5d, 0);
        VMINPD code(1, 1, 0x5d, 1);
        VMAXPS code(0, 1, 0x5f, 0);
        VMAXPD code(1, 1, 0x5f, 1);
        VSQRTPS code(0, 1, 0x51, 0);
        VSQRTPD code(1, 1, 0x51, 1);
        VFMADD213PS code(1, 2, 0xa8, 0);
        VFMADD213PD code(1, 2, 0xa8, 1);
        VFMADD231PS code(1, 2, 0xb8, 0);
        VFMADD231PD code(1, 2, 0xb8, 1);
        VCMPPS code(0, 1, 0xc2, 0);
        VCMPPD code(1, 1, 0xc2, 1);
        VPADDD commuting(1, 1, 0xfe, 0);
        VPADDQ commuting(1, 1, 0xd4, 1);
        VPSUBD code(1, 1, 0xfa, 0);
        VPSUBQ code(1, 1, 0xfb, 1);
        VPMULLD commuting(1, 2, 0x40, 0);
        VPANDD commuting(1, 1, 0xdb, 0);
        VPANDQ commuting(1, 1, 0xdb, 1);
        VPORD commuting(1, 1, 0xeb, 0);
        VPORQ commuting(1, 1, 0xeb, 1);
        VPXORD commuting(1, 1, 0xef, 0);
        VPXORQ commuting(1, 1, 0xef, 1);
        VPMINSD commuting(1, 2, 0x39, 0);
        VPMINUD commuting(1, 2, 0x3b, 0);
        VPMAXSD commuting(1, 2, 0x3d, 0);
        VPABSD code(1, 2, 0x1e, 0);
        VPSLLVD code(1, 2, 0x47, 0);
        VPSLLVQ code(1, 2, 0x47, 1);
        VPSRAVD code(1, 2, 0x46, 0);
        VPSHIFTD code(1, 1, 0x72, 0);
        VCVTDQ2PS code(0, 1, 0x5b, 0);
        VCVTTPS2DQ code(2, 1, 0x5b, 0);
        VCVTPS2DQ code(1, 1, 0x5b, 0);
        VCVTDQ2PD narrow(2, 1, 0xe6, 0, 32);
        VCVTTPD2DQ code(1, 1, 0xe6, 1);
        VCVTPS2PD narrow(0, 1, 0x5a, 0, 32);
        VCVTPD2PS code(1, 1, 0x5a, 1);
        VCVTPH2PS narrow(1, 2, 0x13, 0, 32);
        VCVTPS2PH reversed(1, 3, 0x1d, 0, 32);
        VPMOVSXDQ narrow(1, 2, 0x25, 0, 32);
        VPMOVZXWD narrow(1, 2, 0x33, 0, 32);
        VPMOVSXWD narrow(1, 2, 0x23, 0, 32);
        VPMOVZXBD narrow(1, 2, 0x31, 0, 16);
        VPMOVSXBD narrow(1, 2, 0x21, 0, 16);
        VMOVUPS code(0, 1, 0x10, 0);
        VMOVUPD code(1, 1, 0x10, 1);
        VMOVUPS_STORE reversed(0, 1, 0x11, 0, 64);
        VMOVUPD_STORE reversed(1, 1, 0x11, 1, 64);
        VBROADCASTSS narrow(1, 2, 0x18, 0, 4);
        VPBROADCASTW half(1, 2, 0x79, 0, 2);
        VPBROADCASTB short_of(1, 2, 0x78, 0, 1);
    }
    Avx512 {
        VSCALEFPS code(1, 2, 0x2c, 0);
        VRNDSCALEPS code(1, 3, 0x08, 0);
        VRNDSCALEPD code(1, 3, 0x09, 1);
        VPCMPD code(1, 3, 0x1f, 0);
        VPCMPQ code(1, 3, 0x1f, 1);
        VPCMPUQ code(1, 3, 0x1e, 1);
        VBLENDMPS code(1, 2, 0x65, 0);
        VBLENDMPD code(1, 2, 0x65, 1);
        VPMULLQ commuting(1, 2, 0x40, 1);
        VPMINSQ commuting(1, 2, 0x39, 1);
        VPMAXSQ commuting(1, 2, 0x3d, 1);
        VPABSQ code(1, 2, 0x1f, 1);
        VPSRAVQ code(1, 2, 0x46, 1);
        VCVTQQ2PD code(2, 1, 0xe6, 1);
        VCVTQQ2PS code(0, 1, 0x5b, 1);
        VCVTTPD2QQ code(1, 1, 0x7a, 1);
        VCVTTPS2QQ narrow(1, 1, 0x7a, 0, 32);
        VEXTRACTF64X4 reversed(1, 3, 0x1b, 1, 32);
        VINSERTF64X4 narrow(1, 3, 0x1a, 1, 32);
        VPMOVQD reversed(2, 2, 0x35, 0, 32);
        VPMOVDW reversed(2, 2, 0x33, 0, 32);
        VPMOVDB reversed(2, 2, 0x31, 0, 16);
        VMOVDQU8 short(3, 1, 0x6f, 0);
        VMOVDQU8_STORE short(3, 1, 0x7f, 0);
        VPTESTMB short(1, 2, 0x26, 0);
        VPMOVM2B short(2, 2, 0x28, 0);
        VPMOVM2Q code(2, 2, 0x38, 1);
        VPABSB short(1, 2, 0x1c, 0);
        VBROADCASTSD narrow(1, 2, 0x19, 1, 8);
        VPBROADCASTQ code(1, 2, 0x7c, 1);
        VGATHERQPS narrow(1, 2, 0x93, 0, 4);
        VGATHERQPD narrow(1, 2, 0x93, 1, 8);
        VSCATTERQPS narrow(1, 2, 0xa3, 0, 4);
        VSCATTERQPD narrow(1, 2, 0xa3, 1, 8);
        KANDW mask(0, 1, 0x41, 0, 1);
        KANDNW mask(0, 1, 0x42, 0, 1);
        KORW mask(0, 1, 0x45, 0, 1);
        KXNORW mask(0, 1, 0x46, 0, 1);
        KXORW mask(0, 1, 0x47, 0, 1);
        KNOTW mask(0, 1, 0x44, 0, 0);
        KUNPCKBW mask(1, 1, 0x4b, 0, 1);
        KORTESTW mask(0, 1, 0x98, 0, 0);
        KSHIFTRW mask(1, 3, 0x30, 1, 0);
        KMOVW mask(0, 1, 0x90, 0, 0);
        KMOVW_STORE mask(0, 1, 0x91, 0, 0);
        KMOVW_FROM mask(0, 1, 0x92, 0, 0);
        BZHI mask(0, 2, 0xf5, 0, 0);
    }
    Avx2 {
        VROUNDPS vex(1, 3, 0x08, 0);
        VROUNDPD vex(1, 3, 0x09, 0);
        VPANDN vex(1, 1, 0xdf, 0);
        VPSHIFTQ vex(1, 1, 0x73, 0);
        VPSRLVQ vex(1, 2, 0x45, 1);
        VPMULUDQ vex_commuting(1, 1, 0xf4, 0);
        VPSHUFD vex(1, 1, 0x70, 0);
        VPCMPEQD vex_commuting(1, 1, 0x76, 0);
        VPCMPEQQ vex_commuting(1, 2, 0x29, 0);
        VPCMPGTD vex(1, 1, 0x66, 0);
        VPCMPGTQ vex(1, 2, 0x37, 0);
        VBLENDVPS vex(1, 3, 0x4a, 0);
        VSHUFPS vex(0, 1, 0xc6, 0);
        VPERMQ vex(1, 3, 0x00, 1);
        VINSERTF128 half(1, 3, 0x18, 0, 16);
        VEXTRACTF128 vex_reversed(1, 3, 0x19, 0);
        VMASKMOVPS vex(1, 2, 0x2c, 0);
        VMASKMOVPD vex(1, 2, 0x2d, 0);
        VMASKMOVPS_STORE vex(1, 2, 0x2e, 0);
        VMASKMOVPD_STORE vex(1, 2, 0x2f, 0);
        VMOVMSKPS vex(0, 1, 0x50, 0);
        VBROADCASTSD_Y half(1, 2, 0x19, 0, 8);
        VPBROADCASTD_Y half(1, 2, 0x58, 0, 4);
        VPBROADCASTQ_Y half(1, 2, 0x59, 0, 8);
        VMOVD_FROM short_of(1, 1, 0x6e, 0, 4);
        VMOVQ_FROM short_of(1, 1, 0x6e, 1, 8);
        VPACKUSDW_X short(1, 2, 0x2b, 0);
        VPACKUSWB_X short(1, 1, 0x67, 0);
        VMOVUPS_X_STORE short_reversed(0, 1, 0x11, 0, 16);
        VMOVQ_X_STORE short_reversed(1, 1, 0xd6, 0, 8);
    }
}
