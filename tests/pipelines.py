"""Pipelines of diffusers with random weights, small enough for tests; those for text with its encoders and a VAE."""

import string

import diffusers
import torch
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

PROMPT = "a cat on a mat"
PROMPTS = ["a red cat", "two dogs", "by the sea", "rain"]
SIZE = 16  # of a picture; latents have half of it
LETTERS = [*string.ascii_lowercase]


def clip(seed, kind=CLIPTextModel, projection=8):
    """A text model of CLIP, and a tokenizer that spells."""
    pieces = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], model_max_length=16)
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    ids = {"bos_token_id": 52, "eos_token_id": 53, "pad_token_id": 53}
    torch.manual_seed(seed)
    config = CLIPTextConfig(vocab_size=54, max_position_embeddings=16, projection_dim=projection, **sizes, **ids)
    return kind(config).eval(), tokenizer


def t5(seed, width):
    pieces = ["<pad>", "</s>", "<unk>", "▁", *LETTERS]
    vocab = [(piece, -float(i)) for i, piece in enumerate(pieces)]
    torch.manual_seed(seed)
    config = T5Config(vocab_size=len(pieces), d_model=width, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    return T5EncoderModel(config).eval(), T5Tokenizer(vocab=vocab, extra_ids=0)


def vae(channels, seed=7, **options):
    torch.manual_seed(seed)
    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2}
    widths = {"block_out_channels": [4, 8], "norm_num_groups": 2, "latent_channels": channels}
    return diffusers.AutoencoderKL(**blocks, **widths, **options).eval()


def unet(seed=0, **options):
    torch.manual_seed(seed)
    return diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(8, 8),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        **options,
    ).eval()


def text_unet(seed=0, **options):
    torch.manual_seed(seed)
    return diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        **options,
    ).eval()


def stable_diffusion(prediction="epsilon", **options):
    text, tokenizer = clip(1)
    return quiet(
        diffusers.StableDiffusionPipeline(
            vae=vae(4),
            text_encoder=text,
            tokenizer=tokenizer,
            unet=text_unet(cross_attention_dim=8, **options),
            scheduler=diffusers.DDIMScheduler(
                beta_schedule="scaled_linear",
                beta_start=0.00085,
                beta_end=0.012,
                clip_sample=False,
                set_alpha_to_one=False,
                steps_offset=1,
                prediction_type=prediction,
            ),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    )


def stable_diffusion_xl():
    (one, first), (two, second) = clip(1), clip(2, CLIPTextModelWithProjection)
    added = {"addition_embed_type": "text_time", "addition_time_embed_dim": 4}
    return quiet(
        diffusers.StableDiffusionXLPipeline(
            vae=vae(4),
            text_encoder=one,
            text_encoder_2=two,
            tokenizer=first,
            tokenizer_2=second,
            unet=text_unet(cross_attention_dim=16, projection_class_embeddings_input_dim=8 + 6 * 4, **added),
            scheduler=diffusers.EulerDiscreteScheduler(beta_schedule="scaled_linear", timestep_spacing="trailing"),
            add_watermarker=False,
        )
    )


def stable_diffusion_3():
    (one, first), (two, second) = (clip(seed, CLIPTextModelWithProjection) for seed in (1, 2))
    three, third = t5(3, 32)
    torch.manual_seed(0)
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=32,
        caption_projection_dim=16,
        pooled_projection_dim=16,
        out_channels=4,
        pos_embed_max_size=8,
    ).eval()
    return quiet(
        diffusers.StableDiffusion3Pipeline(
            transformer=transformer,
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
            vae=vae(4, shift_factor=0.06, use_quant_conv=False, use_post_quant_conv=False),
            text_encoder=one,
            tokenizer=first,
            text_encoder_2=two,
            tokenizer_2=second,
            text_encoder_3=three,
            tokenizer_3=third,
        )
    )


def flux(guidance_embeds=True):
    (one, first), (two, second) = clip(1), t5(3, 32)
    torch.manual_seed(0)
    transformer = diffusers.FluxTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=8,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=guidance_embeds,
    ).eval()
    return quiet(
        diffusers.FluxPipeline(
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
            vae=vae(4, shift_factor=0.06, use_quant_conv=False, use_post_quant_conv=False),
            text_encoder=one,
            tokenizer=first,
            text_encoder_2=two,
            tokenizer_2=second,
            transformer=transformer,
        )
    )


def dit_network(kind, side=8, **options):
    torch.manual_seed(0)
    sizes = {"sample_size": side, "num_layers": 1, "attention_head_dim": 8, "num_attention_heads": 3, "in_channels": 4}
    network = kind(**sizes, out_channels=8, **options).eval()
    for parameter in network.parameters():  # some begin at 0, which would hide what they multiply
        torch.nn.init.normal_(parameter, std=0.2)
    return network


def dit(scheduler=None):
    return quiet(
        diffusers.DiTPipeline(
            transformer=dit_network(diffusers.DiTTransformer2DModel),
            vae=vae(4),
            scheduler=scheduler or diffusers.DDIMScheduler(clip_sample=False),
            id2label={0: "tench, fish", 1: "shark", 999: "paper"},
        )
    )


def pixart(kind=diffusers.PixArtSigmaPipeline, side=8):
    """With a side of 128, as of the network for 1024 pixels, the network is told the size of the picture."""
    text, tokenizer = t5(3, 32)
    options = {"caption_channels": 32, "cross_attention_dim": 24, "side": side}
    return quiet(
        kind(
            tokenizer=tokenizer,
            text_encoder=text,
            vae=vae(4),
            transformer=dit_network(diffusers.PixArtTransformer2DModel, **options),
            scheduler=diffusers.DDIMScheduler(clip_sample=False),
        )
    )


def pixart_alpha():
    return pixart(diffusers.PixArtAlphaPipeline, side=128)


def quiet(pipeline):
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


class Calls:
    """Counts the calls of a network, and keeps the time that each of them got."""

    def __init__(self, network):
        self.times = []
        network.register_forward_pre_hook(self._record, with_kwargs=True)

    def _record(self, _, positional, named):
        self.times.append(named["timestep"] if "timestep" in named else positional[1])
