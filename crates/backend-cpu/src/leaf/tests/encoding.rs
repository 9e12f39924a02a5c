//! Every instruction with many operands, decoded by `iced-x86`: the mnemonic, the registers, the address, the mask, the
//! broadcast and the length must be those that were meant.

use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind, Register};

use super::super::codes::{self as c, ALL};
use super::super::encode::*;
use super::super::target::Target;

pub(super) fn decode(bytes: &[u8]) -> Instruction {
    Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE).decode()
}

/// Whether a name of `codes` is on masks or general registers.
fn is_vex(name: &str) -> bool {
    name.starts_with('K') || name == "BZHI"
}

/// The instructions on vectors with an EVEX form.
fn evex() -> impl Iterator<Item = &'static (&'static str, Code)> {
    ALL.iter().filter(|(name, code)| code.avx512 && !is_vex(name))
}

/// Whether a name of `codes` has an address for each lane.
fn is_spread(name: &str) -> bool {
    name.starts_with("VGATHER") || name.starts_with("VSCATTER")
}

/// The mnemonic of a name of `codes`.
fn mnemonic(name: &str, digit: u8) -> String {
    match (name, digit) {
        ("VPSHIFTD", 2) => "VPSRLD".into(),
        ("VPSHIFTD", 4) => "VPSRAD".into(),
        ("VPSHIFTD", _) => "VPSLLD".into(),
        _ => name.trim_end_matches("_STORE").trim_end_matches("_FROM").to_owned(),
    }
}

/// The digits that select an instruction, or registers.
fn first_operands(name: &str) -> Vec<u8> {
    match name {
        "VPSHIFTD" => vec![2, 4, 6],
        // The destination is a mask.
        "VCMPPS" | "VCMPPD" | "VPCMPD" | "VPCMPQ" | "VPCMPUQ" | "VPTESTMB" => (0..8).collect(),
        _ => vec![0, 1, 7, 8, 15, 16, 21, 24, 31],
    }
}

fn takes_imm(name: &str) -> Option<u8> {
    let with = ["VPSHIFTD", "VCMP", "VPCMP", "VRNDSCALE", "VCVTPS2PH", "VEXTRACT", "VINSERT", "KSHIFT"];
    with.iter().any(|w| name.starts_with(w)).then_some(3)
}

pub(super) fn registers(i: &Instruction) -> Vec<usize> {
    let of = |n: u32| (i.op_kind(n) == OpKind::Register).then(|| i.op_register(n).number());
    (0..i.op_count()).filter_map(of).collect()
}

fn whole(bytes: &[u8], name: &str, digit: u8) -> Instruction {
    let i = decode(bytes);
    assert!(!i.is_invalid(), "{name}: {bytes:02x?}");
    assert_eq!(format!("{:?}", i.mnemonic()).to_uppercase(), mnemonic(name, digit), "{bytes:02x?}");
    assert_eq!(i.len(), bytes.len(), "{name}: {bytes:02x?}");
    i
}

fn assembled(f: impl FnOnce(&mut Assembler)) -> Vec<u8> {
    assembled_for(Target::Avx512, f)
}

pub(super) fn assembled_for(target: Target, f: impl FnOnce(&mut Assembler)) -> Vec<u8> {
    let mut a = Assembler::new(target);
    f(&mut a);
    a.finish()
}

/// Whether the instruction has a second source, by whether the decoder accepts one.
fn three(code: Code, imm: Option<u8>) -> bool {
    let lanes = Lanes { mask: 1, zero: false };
    !decode(&assembled(|a| a.evex(code, 3, 5, Rm::Reg(6), lanes, imm))).is_invalid()
}

#[test]
fn vector_instructions_on_registers() {
    for (name, code) in evex().filter(|(name, _)| !is_spread(name)) {
        let (imm, shift) = (takes_imm(name), *name == "VPSHIFTD");
        let three = shift || three(*code, imm);
        for first in first_operands(name) {
            for second in if three { vec![0, 5, 8, 16, 27, 31] } else { vec![0] } {
                for last in [0, 7, 8, 15, 16, 31] {
                    let general = *name == "VPBROADCASTQ";
                    if general && last > 15 {
                        continue;
                    }
                    let lanes = Lanes { mask: 0, zero: false };
                    let bytes = assembled(|a| a.evex(*code, first, second, Rm::Reg(last), lanes, imm));
                    let i = whole(&bytes, name, first);
                    let mut want = vec![usize::from(first), usize::from(second), usize::from(last)];
                    if !three {
                        want.remove(1);
                    }
                    if shift {
                        want.remove(0);
                    }
                    // The VMOVDQU8 store has its destination last, too.
                    if code.reversed || *name == "VMOVDQU8_STORE" {
                        want.reverse();
                    }
                    if name.starts_with("VPMOVM2") && last > 7 {
                        continue;
                    }
                    assert_eq!(registers(&i), want, "{name} {bytes:02x?}");
                    assert_eq!(i.op_mask(), Register::None);
                }
            }
        }
    }
}

#[test]
fn vector_instructions_on_memory() {
    for (name, code) in evex().filter(|(name, _)| !is_spread(name)) {
        if matches!(*name, "VPBROADCASTQ" | "VPMOVM2B" | "VPMOVM2Q") {
            continue;
        }
        let imm = takes_imm(name);
        let three = *name == "VPSHIFTD" || three(*code, imm);
        let first = if *name == "VPSHIFTD" { 2 } else { 3 };
        for (base, index) in [(7, None), (9, Some((0, 2))), (1, Some((0, 0))), (11, Some((8, 3)))] {
            for displacement in [0, 64, -64, 8128, 8192, 40, 100_000, -8, 16, 32] {
                for (mask, zero) in [(0, false), (5, false), (7, true)] {
                    let stores = code.reversed || name.ends_with("_STORE");
                    let compares = first_operands(name).len() == 8;
                    if zero && (stores || compares) {
                        continue;
                    }
                    let at = Base::Gpr { base, index, displacement };
                    let rm = Rm::Mem { base: at, broadcast: false };
                    let second = if three { 29 } else { 0 };
                    let bytes = assembled(|a| a.evex(*code, first, second, rm, Lanes { mask, zero }, imm));
                    let i = whole(&bytes, name, first);
                    assert_eq!(i.memory_base().number(), usize::from(base), "{name}");
                    match index {
                        Some((n, scale)) => {
                            assert_eq!(i.memory_index().number(), usize::from(n));
                            assert_eq!(i.memory_index_scale(), 1 << scale);
                        }
                        None => assert_eq!(i.memory_index(), Register::None),
                    }
                    assert_eq!(
                        i.memory_displacement64() as i64,
                        i64::from(displacement),
                        "{name} {bytes:02x?}"
                    );
                    assert_eq!(i.memory_size().size(), usize::from(code.memory), "{name}");
                    assert_eq!(i.zeroing_masking(), zero);
                    let k = if mask == 0 { Register::None } else { Register::K0 + u32::from(mask) };
                    assert_eq!(i.op_mask(), k);
                }
            }
        }
    }
}

#[test]
fn one_element_for_all_lanes() {
    for (name, code) in evex().filter(|(name, c)| !is_spread(name) && c.memory == 64 && !c.reversed) {
        if matches!(*name, "VPBROADCASTQ" | "VPMOVM2Q" | "VMOVUPS" | "VMOVUPD") {
            continue;
        }
        let imm = takes_imm(name);
        let second = if *name == "VPSHIFTD" || three(*code, imm) { 17 } else { 0 };
        let first = if *name == "VPSHIFTD" { 6 } else { 2 };
        for displacement in [0, 8, 4, 1016, -512, 5000] {
            let rm = Rm::Mem { base: Base::Gpr { base: RDI, index: None, displacement }, broadcast: true };
            let bytes = assembled(|a| a.evex(*code, first, second, rm, Lanes::default(), imm));
            let i = whole(&bytes, name, first);
            assert!(i.is_broadcast(), "{name}");
            assert_eq!(i.memory_displacement64() as i64, i64::from(displacement), "{name}");
            assert_eq!(i.memory_size().element_size(), if code.w { 8 } else { 4 }, "{name}");
        }
    }
}

#[test]
fn an_address_for_each_lane() {
    for (name, code) in evex().filter(|(name, _)| is_spread(name)) {
        for (base, index) in [(7, 0), (9, 7), (1, 8), (14, 16), (2, 23), (RBP, 31)] {
            for displacement in [0, 8, 508, 4000, -16] {
                for (first, mask) in [(1, 3), (18, 7), (30, 4)] {
                    let scale = if code.w { 3 } else { 2 };
                    let at = Base::Lanes { base, index, scale, displacement };
                    let rm = Rm::Mem { base: at, broadcast: false };
                    let bytes = assembled(|a| a.evex(*code, first, 0, rm, Lanes { mask, zero: false }, None));
                    let i = whole(&bytes, name, 0);
                    assert_eq!(registers(&i), [usize::from(first)], "{name}");
                    assert_eq!(i.memory_base().number(), usize::from(base), "{name}");
                    assert_eq!(i.memory_index(), Register::ZMM0 + u32::from(index), "{name}");
                    assert_eq!(i.memory_index_scale(), 1 << scale);
                    assert_eq!(i.memory_displacement64() as i64, i64::from(displacement), "{name}");
                    assert_eq!(i.op_mask(), Register::K0 + u32::from(mask));
                }
            }
        }
    }
}

#[test]
fn masks_and_general_registers() {
    for (name, code) in ALL.iter().filter(|(name, _)| is_vex(name)) {
        let memory = *name == "KMOVW_STORE";
        for last in (0..8).filter(|_| !memory) {
            let second = if matches!(*name, "KNOTW" | "KMOVW" | "KMOVW_FROM" | "KSHIFTRW" | "KORTESTW") {
                0
            } else {
                5
            };
            let bytes = assembled(|a| a.vex(*code, 3, second, Rm::Reg(last), takes_imm(name)));
            let i = whole(&bytes, name, 0);
            let want = match (second, *name) {
                (0, _) => vec![3, usize::from(last)],
                (_, "BZHI") => vec![3, usize::from(last), 5],
                _ => vec![3, 5, usize::from(last)],
            };
            assert_eq!(registers(&i), want, "{name}");
        }
    }
    for (name, code) in [("KMOVW", c::KMOVW), ("KMOVW_STORE", c::KMOVW_STORE)] {
        let rm = Rm::Mem { base: Base::Gpr { base: RDI, index: None, displacement: 192 }, broadcast: false };
        let i = whole(&assembled(|a| a.vex(code, 4, 0, rm, None)), name, 0);
        assert_eq!((i.memory_displacement64(), i.memory_size().size()), (192, 2));
    }
    let text = |f: &dyn Fn(&mut Assembler)| {
        let i = decode(&assembled(|a| f(a)));
        format!("{:?} {:?}", i.mnemonic(), registers(&i))
    };
    assert_eq!(text(&|a| a.load(9, RDI, 24)), "Mov [9]");
    assert_eq!(text(&|a| a.add_load(RDX, RDI, 24)), "Add [2]");
    assert_eq!(text(&|a| a.lea(RDX, RAX, 64)), "Lea [2]");
    assert_eq!(text(&|a| a.multiply(RDX, 12)), "Imul [2, 2]");
    assert_eq!(text(&|a| a.compare(RDX, RSI)), "Cmp [2, 6]");
    assert_eq!(text(&|a| a.subtract(RSI, RAX)), "Sub [6, 0]");
    assert_eq!(text(&|a| a.set(RCX, 7)), "Mov [1]");
    assert_eq!(text(&|a| a.store(RBX, RDI, 24)), "Mov [3]");
    assert_eq!(text(&|a| a.add_to(9, RDI, 24)), "Add [9]");
    assert_eq!(text(&|a| a.add_constant_to(RDI, 24, -3)), "Add []");
    assert_eq!(text(&|a| a.add(13, 1000)), "Add [13]");
    assert_eq!(text(&|a| a.compare_with(RDX, 0)), "Cmp [2]");
    assert_eq!(text(&|a| a.set_signed(RBX, -7)), "Mov [3]");
    assert_eq!(text(&|a| a.copy_if_less(RBX, RDX)), "Cmovl [3, 2]");
    assert_eq!(text(&|a| a.save(15)), "Push [15]");
    assert_eq!(text(&|a| a.copy(RBX, RDI)), "Mov [3, 7]");
    assert_eq!(text(&|a| a.restore_stack(RBP)), "Mov [4, 5]");
    assert_eq!(text(&|a| a.ret()), "Ret []");
    let calls = assembled(|a| a.align_stack(RBP)).into_iter().chain(assembled(|a| a.call_register(RDX)));
    let calls: Vec<u8> = calls
        .chain(assembled(|a| {
            a.call();
            a.jump_always();
        }))
        .collect();
    let decoder = Decoder::with_ip(64, &calls, 0, DecoderOptions::NONE);
    let all: Vec<String> =
        decoder.into_iter().map(|i| format!("{:?} {:?}", i.mnemonic(), registers(&i))).collect();
    assert_eq!(all, ["Mov [5, 4]", "And [4]", "Vzeroupper []", "Call [2]", "Call []", "Jmp []"]);
    assert_eq!(text(&|a| a.restore(RBP)), "Pop [5]");
    for displacement in [24, -8000] {
        let i = decode(&assembled(|a| a.add_constant_to(RDI, displacement, -3)));
        assert_eq!(
            (i.memory_base(), i.memory_displacement64() as i64),
            (Register::RDI, i64::from(displacement))
        );
        assert_eq!((i.immediate(1) as i64, i.memory_size().size()), (-3, 8));
    }
    assert_eq!(text(&|a| a.leave()), "Vzeroupper []");
}

#[test]
fn constants_are_where_the_code_looks_for_them() {
    let one = Constant::Narrow(1.5f32.to_bits());
    let wide = Constant::Wide(0x1234_5678_9abc_def0);
    let steps = Constant::Multiples(-3);
    let bytes = assembled(|a| {
        for (code, constant, broadcast) in [
            (c::VADDPS, one, true),
            (c::VADDPD, wide, true),
            (c::VPADDQ, steps, false),
            (c::VMULPS, one, true),
        ] {
            let rm = Rm::Mem { base: Base::Pool(constant), broadcast };
            a.evex(code, 20, 4, rm, Lanes::default(), None);
        }
        let rm = Rm::Mem { base: Base::Pool(one), broadcast: true };
        a.evex(c::VCMPPS, 5, 4, rm, Lanes::default(), Some(3));
    });
    let mut decoder = Decoder::with_ip(64, &bytes, 0, DecoderOptions::NONE);
    let mut at = || decoder.decode().memory_displacement64() as usize;
    let (a, b, s, again, compared) = (at(), at(), at(), at(), at());
    assert_eq!(bytes[a..a + 4], 1.5f32.to_le_bytes());
    assert_eq!(bytes[b..b + 8], 0x1234_5678_9abc_def0u64.to_le_bytes());
    assert_eq!(bytes[s + 56..s + 64], (-21i64).to_le_bytes());
    assert_eq!((again, compared), (a, a));
    assert_eq!((s % 64, b % 8), (0, 0));
}
