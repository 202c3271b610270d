"""p07, quantization: keep fewer bits for each weight, and measure what that loses."""
