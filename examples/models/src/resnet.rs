//! ResNet (He et al., 2015), as torchvision has it: images `[batch, 3, height, width]` to scores `[batch, classes]`.

use ferroflux::nn::{AdaptiveAvgPool2d, BatchNorm2d, Conv2d, Layer, Linear, MaxPool2d, Module, Sequential};
use ferroflux::prelude::*;

/// A network of residual blocks.
#[derive(Module)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    layer1: Sequential,
    layer2: Sequential,
    layer3: Sequential,
    layer4: Sequential,
    fc: Linear,
}

/// Two convolutions of 3×3.
#[derive(Module)]
struct BasicBlock {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    downsample: Option<Sequential>,
}

/// A convolution of 3×3 between two of 1×1, the last of which has four times the channels.
#[derive(Module)]
struct Bottleneck {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    conv3: Conv2d,
    bn3: BatchNorm2d,
    downsample: Option<Sequential>,
}

fn conv3x3(inputs: i64, outputs: i64, stride: i64) -> Conv2d {
    Conv2d::new(inputs, outputs, 3).stride(stride).padding(1).without_bias()
}

fn conv1x1(inputs: i64, outputs: i64, stride: i64) -> Conv2d {
    Conv2d::new(inputs, outputs, 1).stride(stride).without_bias()
}

/// The way around a block whose output has other sizes than its input.
fn downsample(inputs: i64, outputs: i64, stride: i64) -> Option<Sequential> {
    let needed = stride != 1 || inputs != outputs;
    needed.then(|| Sequential::new().then(conv1x1(inputs, outputs, stride)).then(BatchNorm2d::new(outputs)))
}

fn shortcut(way: &Option<Sequential>, x: &Tensor) -> Tensor {
    way.as_ref().map_or_else(|| x.clone(), |way| way.forward(x))
}

impl Layer for BasicBlock {
    fn forward(&self, x: &Tensor) -> Tensor {
        let y = self.bn1.forward(&self.conv1.forward(x)).relu();
        let y = self.bn2.forward(&self.conv2.forward(&y));
        (y + shortcut(&self.downsample, x)).relu()
    }
}

impl Layer for Bottleneck {
    fn forward(&self, x: &Tensor) -> Tensor {
        let y = self.bn1.forward(&self.conv1.forward(x)).relu();
        let y = self.bn2.forward(&self.conv2.forward(&y)).relu();
        let y = self.bn3.forward(&self.conv3.forward(&y));
        (y + shortcut(&self.downsample, x)).relu()
    }
}

/// The blocks of a stage, the first of which changes the sizes.
fn stage(bottleneck: bool, blocks: usize, from: &mut i64, channels: i64, stride: i64) -> Sequential {
    let outputs = if bottleneck { 4 * channels } else { channels };
    (0..blocks).fold(Sequential::new(), |stage, n| {
        let stride = if n == 0 { stride } else { 1 };
        let inputs = std::mem::replace(from, outputs);
        let way = downsample(inputs, outputs, stride);
        if bottleneck {
            return stage.then(Bottleneck {
                conv1: conv1x1(inputs, channels, 1),
                bn1: BatchNorm2d::new(channels),
                conv2: conv3x3(channels, channels, stride),
                bn2: BatchNorm2d::new(channels),
                conv3: conv1x1(channels, outputs, 1),
                bn3: BatchNorm2d::new(outputs),
                downsample: way,
            });
        }
        stage.then(BasicBlock {
            conv1: conv3x3(inputs, channels, stride),
            bn1: BatchNorm2d::new(channels),
            conv2: conv3x3(channels, channels, 1),
            bn2: BatchNorm2d::new(channels),
            downsample: way,
        })
    })
}

impl ResNet {
    fn new(bottleneck: bool, blocks: [usize; 4], classes: i64) -> ResNet {
        let mut channels = 64;
        let [a, b, c, d] = blocks;
        ResNet {
            conv1: Conv2d::new(3, 64, 7).stride(2).padding(3).without_bias(),
            bn1: BatchNorm2d::new(64),
            layer1: stage(bottleneck, a, &mut channels, 64, 1),
            layer2: stage(bottleneck, b, &mut channels, 128, 2),
            layer3: stage(bottleneck, c, &mut channels, 256, 2),
            layer4: stage(bottleneck, d, &mut channels, 512, 2),
            fc: Linear::new(channels, classes),
        }
    }

    /// ResNet-18.
    pub fn resnet18(classes: i64) -> ResNet {
        ResNet::new(false, [2, 2, 2, 2], classes)
    }
    /// ResNet-50.
    pub fn resnet50(classes: i64) -> ResNet {
        ResNet::new(true, [3, 4, 6, 3], classes)
    }
    /// ResNet-152.
    pub fn resnet152(classes: i64) -> ResNet {
        ResNet::new(true, [3, 8, 36, 3], classes)
    }
}

impl Layer for ResNet {
    fn forward(&self, x: &Tensor) -> Tensor {
        let x = self.bn1.forward(&self.conv1.forward(x)).relu();
        let x = MaxPool2d { kernel: 3, stride: 2, padding: 1 }.forward(&x);
        let stages = [&self.layer1, &self.layer2, &self.layer3, &self.layer4];
        let x = stages.iter().fold(x, |x, stage| stage.forward(&x));
        self.fc.forward(&AdaptiveAvgPool2d { size: [1, 1] }.forward(&x).flatten(1, -1))
    }
}
