"""The networks that ``networks.py`` runs: 18 of torchvision, 43 of timm, 34 of transformers, at small sizes.

Weights are random, of torch's generator; nothing is downloaded. A network is ``(module, args, keywords)``. Everything that
draws random numbers in training is switched off, so that two runs agree. Not here: what is done with them.
"""

from __future__ import annotations

import torch

TV = {
    "alexnet": 96, "convnext_tiny": 64, "deeplabv3_resnet50": 64, "densenet121": 64, "efficientnet_b0": 64,
    "fcn_resnet50": 64, "googlenet": 96, "mobilenet_v2": 64, "mobilenet_v3_large": 64, "r3d_18": 48, "regnet_y_400mf": 64,
    "resnet18": 64, "resnet50": 64, "resnet152": 64, "resnext50_32x4d": 64, "squeezenet1_1": 64, "swin_t": 64, "vit_b_16": 64,
}  # fmt: skip
# Side of the image, and settings that make a network smaller.
TIMM = {
    "beit_base_patch16_224": (64, {"img_size": 64, "depth": 4}),
    "coat_lite_mini": (64, {"img_size": 64}),
    "convit_base": (64, {"img_size": 64, "depth": 11}),
    "convmixer_768_32": (64, {}),
    "convnext_base": (64, {}),
    "crossvit_9_240": (240, {}),
    "deit_base_distilled_patch16_224": (64, {"img_size": 64, "depth": 4}),
    "dla102": (64, {}),
    "dm_nfnet_f0": (64, {}),
    "eca_botnext26ts_256": (256, {}),
    "eca_halonext26ts": (256, {}),
    "gernet_l": (64, {}),
    "ghostnet_100": (64, {}),
    "gluon_inception_v3": (128, {}),
    "gmlp_s16_224": (64, {"img_size": 64}),
    "hrnet_w18": (64, {}),
    "inception_v3": (128, {}),
    "lcnet_050": (64, {}),
    "mixer_b16_224": (64, {"img_size": 64}),
    "mixnet_l": (64, {}),
    "mnasnet_100": (64, {}),
    "mobilenetv2_100": (64, {}),
    "mobilenetv3_large_100": (64, {}),
    "mobilevit_s": (64, {}),
    "nfnet_l0": (64, {}),
    "pit_b_224": (64, {"img_size": 64}),
    "pnasnet5large": (96, {}),
    "poolformer_m36": (64, {}),
    "repvgg_a2": (64, {}),
    "res2net101_26w_4s": (64, {}),
    "res2next50": (64, {}),
    "resmlp_12_224": (64, {"img_size": 64}),
    "resnest101e": (64, {}),
    "rexnet_100": (64, {}),
    "selecsls42b": (64, {}),
    "swin_base_patch4_window7_224": (224, {"depths": (1, 1, 2, 1)}),
    "tf_efficientnet_b0": (64, {}),
    "tf_mixnet_l": (64, {}),
    "tnt_s_patch16_224": (64, {"img_size": 64, "depth": 4}),
    "twins_pcpvt_base": (64, {"img_size": 64}),
    "vit_base_patch16_224": (64, {"img_size": 64, "depth": 4}),
    "volo_d1_224": (64, {"img_size": 64}),
    "xcit_large_24_p8_224": (64, {"img_size": 64, "depth": 4}),
}  # fmt: skip
HF = (
    "AlbertForMaskedLM", "AlbertForQuestionAnswering", "BartForConditionalGeneration", "BertForMaskedLM",
    "BlenderbotForCausalLM", "BlenderbotSmallForCausalLM", "BlenderbotSmallForConditionalGeneration", "CLIPModel",
    "CamembertForMaskedLM", "ConvBertForMaskedLM", "DebertaForQuestionAnswering", "DebertaV2ForMaskedLM",
    "DetrForSegmentation", "ElectraForCausalLM", "ElectraForQuestionAnswering", "FNetForMaskedLM", "GPT2LMHeadModel",
    "GemmaForCausalLM", "LayoutLMForSequenceClassification", "LlamaForCausalLM", "MBartForCausalLM",
    "MBartForConditionalGeneration", "MegatronBertForCausalLM", "MegatronBertForQuestionAnswering", "MistralForCausalLM",
    "MixtralForCausalLM", "MobileBertForQuestionAnswering", "PLBartForCausalLM", "PegasusForCausalLM", "RobertaForCausalLM",
    "T5ForConditionalGeneration", "Wav2Vec2ForCTC", "WhisperForConditionalGeneration", "XGLMForCausalLM",
)  # fmt: skip
# Values of a small configuration, by the names that the families have for them.
SMALL = {
    "vocab_size": 512, "hidden_size": 64, "d_model": 64, "n_embd": 64, "embedding_size": 64, "num_hidden_layers": 2,
    "encoder_layers": 2, "decoder_layers": 2, "num_layers": 2, "num_decoder_layers": 2, "n_layer": 2, "num_attention_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "attention_heads": 4, "num_heads": 4, "n_head": 4,
    "num_key_value_heads": 2, "head_dim": 16, "d_kv": 16, "intermediate_size": 128, "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128, "ffn_dim": 128, "d_ff": 128, "num_local_experts": 4, "true_hidden_size": 64,
    "intra_bottleneck_size": 64, "pooler_hidden_size": 64, "max_source_positions": 100, "projection_dim": 32,
}  # fmt: skip
TOKENS = (2, 32)


def names() -> list[str]:
    """All networks, as ``tv/resnet18``."""
    return [f"tv/{n}" for n in TV] + [f"timm/{n}" for n in TIMM] + [f"hf/{n}" for n in HF]


def build(name: str, batch: int = 2) -> tuple[torch.nn.Module, tuple, dict]:
    """A network with its inputs, in float32 on the CPU. Raises ``ImportError`` where its library is not installed."""
    torch.manual_seed(0)
    library, _, short = name.partition("/")
    made = {"tv": torchvision_network, "timm": timm_network, "hf": transformers_network}[library](short, batch)
    quiet(made[0])
    return made


def torchvision_network(name: str, batch: int):
    from torchvision import models

    size = TV[name]
    if name == "r3d_18":
        return models.video.r3d_18(), (torch.randn(batch, 3, 4, size, size),), {}
    where = models.segmentation if "_resnet50" in name and name[0] in "df" else models
    settings = {"weights_backbone": None, "aux_loss": False} if where is not models else {}
    if name == "googlenet":
        settings = {"aux_logits": False, "init_weights": False}
    if name == "vit_b_16":
        settings = {"image_size": size}
    return getattr(where, name)(**settings), (torch.randn(batch, 3, size, size),), {}


def timm_network(name: str, batch: int):
    import timm

    size, settings = TIMM[name]
    return timm.create_model(name, pretrained=False, **settings), (torch.randn(batch, 3, size, size),), {}


def transformers_network(name: str, batch: int):
    import transformers

    cls = getattr(transformers, name)
    config = small(cls.config_class)
    model = cls(config)
    tokens = lambda: torch.randint(3, 500, (batch, TOKENS[1]))
    if name == "CLIPModel":
        return model, (), {"input_ids": tokens(), "pixel_values": torch.randn(batch, 3, 32, 32)}
    if name == "DetrForSegmentation":
        return model, (torch.randn(batch, 3, 64, 64),), {}
    if name == "Wav2Vec2ForCTC":
        return model, (torch.randn(batch, 4000),), {}
    if name == "WhisperForConditionalGeneration":
        return model, (torch.randn(batch, 80, 200),), {"decoder_input_ids": tokens()}
    more = {"decoder_input_ids": tokens()} if "ConditionalGeneration" in name else {}
    return model, (tokens(),), {**more, **({"use_cache": False} if hasattr(config, "use_cache") else {})}


def small(config_class: type):
    """A configuration of little cost that draws no random numbers."""
    given = {}
    known = config_class().to_dict()
    for key, value in known.items():
        if key in SMALL and isinstance(value, int):
            given[key] = SMALL[key]
        elif isinstance(value, float) and ("drop" in key or key.startswith("mask_") and key.endswith("_prob")):
            given[key] = 0.0
        elif key.endswith("_token_id") and isinstance(value, int) and value >= SMALL["vocab_size"]:
            given[key] = 2
    name = config_class.__name__
    if name == "CLIPConfig":
        part = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
        given["text_config"] = {**part, "vocab_size": 512, "eos_token_id": 2, "bos_token_id": 1}
        given["vision_config"] = {**part, "image_size": 32, "patch_size": 16}
    if name == "DetrConfig":
        given.update(use_pretrained_backbone=False, use_timm_backbone=True, backbone="resnet18", num_queries=10, d_model=256)
        given.update(encoder_attention_heads=8, decoder_attention_heads=8)
    if name == "Wav2Vec2Config":
        given.update(conv_dim=(32,) * 7, apply_spec_augment=False, num_conv_pos_embedding_groups=4, vocab_size=32)
    if name == "MobileBertConfig":
        given.update(hidden_size=64)
    return config_class(**given)


def quiet(model: torch.nn.Module) -> None:
    """Switches off everything in a network that draws random numbers."""
    for module in model.modules():
        for name in ("p", "drop_prob", "dropout", "drop_rate", "attn_drop_prob", "attn_dropout_p"):
            if isinstance(vars(module).get(name), float):
                setattr(module, name, 0.0)
