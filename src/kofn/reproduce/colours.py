"""The colours of all pictures: Okabe and Ito's, apart in lightness too."""

BLUE, ORANGE, GREEN, GREY, INK = "#0072b2", "#e69f00", "#009e73", "#9a9a9a", "#333333"
SKY, PINK, RED = "#56b4e9", "#cc79a7", "#d55e00"
