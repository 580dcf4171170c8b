"""What wraps a backbone, draws masks, scores labels and predicts. Needs torch and safetensors."""
