"""Pretrained families made of transformer parts, with Hugging Face's names, configurations and weights."""

from . import bert_attention as bert_attention
from .bert import Bert as Bert
from .bert import BertOutput as BertOutput
from .bert_config import BertConfig as BertConfig
from .pretrained import FAMILIES as FAMILIES
from .pretrained import from_pretrained as from_pretrained
from .pretrained import load_model as load_model
from .pretrained import load_pretrained as load_pretrained
