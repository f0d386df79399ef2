"""Small pipelines of diffusers with random weights and a real path for text, made on the spot."""

from string import ascii_lowercase

import diffusers
import pytest
import torch

SIZE = 16  # of a picture; latents have half of it
PROMPT = "a cat on a mat"


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


def text_unet(cross_attention_dim=16, **options):
    torch.manual_seed(0)
    return diffusers.UNet2DConditionModel(
        sample_size=SIZE // 2,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=cross_attention_dim,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        **options,
    ).eval()


def vae(latent_channels=4):
    torch.manual_seed(1)
    return diffusers.AutoencoderKL(
        block_out_channels=(8, 8),
        norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=latent_channels,
        sample_size=SIZE,
        shift_factor=0.1,
        force_upcast=False,
    ).eval()


def clip(projected=False):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    config = transformers.CLIPTextConfig(
        vocab_size=54,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        projection_dim=16,
        bos_token_id=52,
        eos_token_id=53,
    )
    return (transformers.CLIPTextModelWithProjection if projected else transformers.CLIPTextModel)(config).eval()


def clip_tokenizer():
    transformers = pytest.importorskip("transformers")
    tokens = [*ascii_lowercase, *(f"{letter}</w>" for letter in ascii_lowercase), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=16)


def t5():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    config = transformers.T5Config(vocab_size=32, d_model=32, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    return transformers.T5EncoderModel(config).eval()


def t5_tokenizer():
    transformers = pytest.importorskip("transformers")
    pieces = ["<pad>", "</s>", "<unk>", "▁", *ascii_lowercase]
    return transformers.T5TokenizerFast(vocab=[(piece, 0.0) for piece in pieces], extra_ids=0, model_max_length=16)


def stable_diffusion(scheduler=None, pipeline=diffusers.StableDiffusionPipeline, **options):
    scheduler = scheduler or diffusers.PNDMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        steps_offset=1,
        skip_prk_steps=True,
        **options,
    )
    parts = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    return quiet(
        pipeline(
            vae=vae(), text_encoder=clip(), tokenizer=clip_tokenizer(), unet=text_unet(), scheduler=scheduler, **parts
        )
    )


def stable_diffusion_xl():
    network = text_unet(
        cross_attention_dim=32,
        addition_embed_type="text_time",
        addition_time_embed_dim=4,
        projection_class_embeddings_input_dim=16 + 6 * 4,
    )
    scheduler = diffusers.EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    return quiet(
        diffusers.StableDiffusionXLPipeline(
            vae=vae(),
            text_encoder=clip(),
            text_encoder_2=clip(projected=True),
            tokenizer=clip_tokenizer(),
            tokenizer_2=clip_tokenizer(),
            unet=network,
            scheduler=scheduler,
            add_watermarker=False,
        )
    )


def stable_diffusion_3():
    torch.manual_seed(0)
    network = diffusers.SD3Transformer2DModel(
        sample_size=SIZE // 2,
        patch_size=1,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=32,
        caption_projection_dim=16,
        pooled_projection_dim=32,
        pos_embed_max_size=SIZE,
    ).eval()
    return quiet(
        diffusers.StableDiffusion3Pipeline(
            vae=vae(),
            text_encoder=clip(projected=True),
            text_encoder_2=clip(projected=True),
            text_encoder_3=t5(),
            tokenizer=clip_tokenizer(),
            tokenizer_2=clip_tokenizer(),
            tokenizer_3=t5_tokenizer(),
            transformer=network,
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        )
    )


def flux():
    torch.manual_seed(0)
    network = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=16,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=True,
    ).eval()
    return quiet(
        diffusers.FluxPipeline(
            vae=vae(),
            text_encoder=clip(),
            text_encoder_2=t5(),
            tokenizer=clip_tokenizer(),
            tokenizer_2=t5_tokenizer(),
            transformer=network,
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(
                shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15
            ),
        )
    )


def dit():
    torch.manual_seed(0)
    network = diffusers.DiTTransformer2DModel(
        sample_size=SIZE // 2,
        patch_size=2,
        in_channels=4,
        out_channels=8,  # the noise, and a variance
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_zero",
        norm_elementwise_affine=False,
    ).eval()
    for weight in network.parameters():  # the last layers are zero
        torch.nn.init.normal_(weight, std=0.2)
    return quiet(diffusers.DiTPipeline(network, vae(), diffusers.DDIMScheduler(clip_sample=False, beta_end=0.004)))


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
